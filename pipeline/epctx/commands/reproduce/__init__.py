"""`epctx reproduce`: two builds under two sets of circumstances, compared (design section 9)."""
