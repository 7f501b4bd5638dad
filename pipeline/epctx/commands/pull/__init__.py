"""`epctx pull`: a package, out of a registry."""
