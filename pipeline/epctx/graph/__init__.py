"""Pure ONNX: graphs, the EPContext op, external data, canonical form; no execution provider."""
