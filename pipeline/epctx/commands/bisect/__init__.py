"""`epctx bisect`: find where a compiled model's numbers go wrong, why, and how to repair them."""
