"""Declarative, reproducible builds of ONNX Runtime EPContext models."""
