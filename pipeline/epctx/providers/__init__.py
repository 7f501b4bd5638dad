"""Execution providers: the contract, the registry, the reference EP, ONNX Runtime EPs."""
