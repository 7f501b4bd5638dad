"""The conformance class: what an execution provider owes, as tests that its author runs.

    from epctx.providers.conformance import ExecutionProviderConformance

    class TestMyProvider(ExecutionProviderConformance):
        def create(self) -> ExecutionProvider:
            return MyProvider({})

Needs pytest. The provider must take MatMul, Add and Relu of float32. Tests of what it cannot do
(sharing, loading where onnxruntime runs its nodes, determinism in one process where it asks for a
fresh one) are skipped by what it says of itself. Source: spec/ep-context-design.md, real-eps.md
for what goes wrong, design section 8.
"""

import pytest

pytest.register_assert_rewrite(
    *(f"{__name__}.{part}" for part in ("compiling", "identity", "loading", "sharing", "subject"))
)

from epctx.providers.conformance.compiling import Compiling  # noqa: E402
from epctx.providers.conformance.identity import Identity  # noqa: E402
from epctx.providers.conformance.loading import Loading  # noqa: E402
from epctx.providers.conformance.sharing import Sharing  # noqa: E402


class ExecutionProviderConformance(Identity, Compiling, Loading, Sharing):
    """Tests of an execution provider; a subclass says how to make one: `create`.

    Attributes:
        max_rel: largest error against ONNX Runtime's CPU EP, relative to the output's largest
            magnitude. Loosen it for hardware that computes in another precision.
    """


__all__ = ["ExecutionProviderConformance"]
