"""`epctx inspect`: an EPContext model or a context binary, in words."""
