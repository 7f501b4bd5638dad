"""Float models made integer ones, over `onnxruntime.quantization`, and what that costs them."""
