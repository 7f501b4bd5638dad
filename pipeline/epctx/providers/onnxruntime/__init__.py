"""EPs of ONNX Runtime: plugin EPs and built-in ones."""
