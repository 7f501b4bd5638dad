"""The conformance class: tests that the author of an execution provider runs.

    from epctx.provider_tests import ExecutionProviderConformance

    class TestMyProvider(ExecutionProviderConformance):
        def create(self) -> ExecutionProvider:
            return MyProvider({})

Needs pytest. The provider must take MatMul, Add and Relu of float32. Tests of features that the
provider declares unsupported are skipped: sharing, loading if onnxruntime runs its nodes,
determinism in one process if it needs a fresh process. The tests check the rules of ONNX Runtime's
design of EPContext models, and faults seen in real EPs.
"""

import pytest

pytest.register_assert_rewrite(f"{__name__}.conformance")

# After the line above, since pytest does not rewrite modules that are imported already.
from epctx.provider_tests.conformance import ExecutionProviderConformance  # noqa: E402

__all__ = ["ExecutionProviderConformance"]
