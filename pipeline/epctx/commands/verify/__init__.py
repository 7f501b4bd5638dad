"""`epctx verify`: check built outputs again."""
