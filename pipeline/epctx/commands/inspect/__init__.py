"""`epctx inspect`: describe an EPContext model or a context binary."""
