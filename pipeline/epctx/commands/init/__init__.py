"""`epctx init`: a starter manifest, for models, a folder of onnxruntime-genai, or an example."""
