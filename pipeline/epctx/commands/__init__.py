"""What each verb of the command line does; `cli` parses and prints, `api` documents."""
