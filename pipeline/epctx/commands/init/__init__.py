"""`epctx init`: write a starter manifest for models, an onnxruntime-genai folder, or an example."""
