"""Where the zoo's models come from: a module for each kind of tool, with its recipes."""
