"""`epctx.compile_model`: one EPContext model, without a manifest."""
