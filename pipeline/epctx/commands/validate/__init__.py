"""`epctx validate`: check a manifest and the headers of the models that it names."""
