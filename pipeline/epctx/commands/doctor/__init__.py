"""`epctx doctor`: what is installed here, and what this host can build and run."""
