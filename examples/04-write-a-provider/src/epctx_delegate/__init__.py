"""An execution provider of its own: elementwise operators and MatMul, by numpy."""
