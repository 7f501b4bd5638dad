"""The conformance class: what an execution provider owes, as tests that its author runs.

    from epctx.provider_tests import ExecutionProviderConformance

    class TestMyProvider(ExecutionProviderConformance):
        def create(self) -> ExecutionProvider:
            return MyProvider({})

Needs pytest. The provider must take MatMul, Add and Relu of float32. Tests of what it cannot do
(sharing, loading where onnxruntime runs its nodes, determinism in one process where it asks for a
fresh one) are skipped by what it says of itself. They ask for what ONNX Runtime's design of
EPContext models asks of an EP, and for what real EPs were seen to do wrong.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.conformance")

# After the line above: what is imported already is not rewritten.
from epctx.provider_tests.conformance import ExecutionProviderConformance  # noqa: E402

__all__ = ["ExecutionProviderConformance"]
