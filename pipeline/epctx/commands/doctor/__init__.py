"""`epctx doctor`: report what is installed, and what this host can build and run."""
