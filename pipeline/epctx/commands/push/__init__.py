"""`epctx push`: a package, into a registry."""
