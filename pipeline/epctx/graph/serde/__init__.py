"""ONNX files: read without their weights, written canonically."""
