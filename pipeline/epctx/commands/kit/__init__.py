"""`epctx kit`: what a device needs that has ONNX Runtime and no epctx."""
