"""`epctx import`: manifests made of what other tools are told."""
