"""`epctx kit`: collect the files that a device with ONNX Runtime but without epctx needs."""
