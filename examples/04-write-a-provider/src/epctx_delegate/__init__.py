"""The delegate, an execution provider that runs elementwise operators and MatMul with numpy."""
