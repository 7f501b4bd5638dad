"""The command line: a module a command, which parses and prints; `commands` does the work."""
