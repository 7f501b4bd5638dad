"""`epctx bisect`: where a compiled model's numbers go wrong, why, and what repairs them."""
