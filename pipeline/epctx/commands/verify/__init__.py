"""`epctx verify`: what was built, checked again."""
