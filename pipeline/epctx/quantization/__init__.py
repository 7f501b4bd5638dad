"""Quantizing of float models by `onnxruntime.quantization`, and its losses."""
