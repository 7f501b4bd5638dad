"""The conformance class: all tests of an execution provider in one class."""

from __future__ import annotations

from epctx.provider_tests.compiling import Compiling
from epctx.provider_tests.identity import Identity
from epctx.provider_tests.loading import Loading
from epctx.provider_tests.sharing import Sharing


class ExecutionProviderConformance(Identity, Compiling, Loading, Sharing):
    """Tests of an execution provider; a subclass says how to make one: `create`.

    Attributes:
        max_rel: largest error against ONNX Runtime's CPU EP, relative to the output's largest
            magnitude. Loosen it for hardware that computes in another precision.
    """
