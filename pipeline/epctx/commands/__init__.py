"""The verbs of the command line; `cli` parses and prints, `api` documents."""
