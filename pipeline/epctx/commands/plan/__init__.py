"""`epctx plan`: what a build would do, why, and who takes which node."""
