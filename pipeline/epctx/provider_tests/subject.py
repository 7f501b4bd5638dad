"""What the tests of the conformance class have in common: the provider under test."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from epctx.graph.epcontext import EPContextNode
from epctx.provider_tests.building import Array, Built
from epctx.providers.base import ExecutionProvider, Kernel


class Subject:
    """Makes the provider, and skips what it says it does not do."""

    max_rel: float = 1e-5

    def create(self) -> ExecutionProvider:
        """A provider, as `epctx.execution_providers` makes it; a new object each time."""
        raise NotImplementedError("say how to make the provider")

    @pytest.fixture
    def provider(self) -> ExecutionProvider:
        """A provider for one test."""
        return self.create()

    @pytest.fixture
    def loading(self, provider: ExecutionProvider) -> ExecutionProvider:
        """A provider that loads its nodes itself."""
        if provider.native:
            pytest.skip("onnxruntime itself runs its nodes")
        return provider

    @pytest.fixture
    def sharing(self, provider: ExecutionProvider) -> ExecutionProvider:
        """A provider that puts several models into one context."""
        if not provider.can_share:
            pytest.skip("it does not share contexts")
        return provider

    def close_to(self, found: Array, wanted: Array) -> None:
        """Fail unless the numbers are the same within `max_rel`."""
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        assert found.any() or not wanted.any(), "it is zero throughout, and should not be"
        error = np.abs(found.astype(np.float64) - wanted.astype(np.float64)).max()
        assert error <= self.max_rel * np.abs(wanted).max()


def load(
    provider: ExecutionProvider, nodes: Sequence[EPContextNode], folder: Path | None
) -> list[Kernel]:
    """Load nodes without sharing."""
    return list(provider.load(nodes, folder, None))


def refer_to(built: Built, binary: str) -> None:
    """Fail unless every model's primary nodes refer to this binary."""
    for nodes in built.nodes.values():
        assert {node.context_path for node in nodes if node.main_context} == {binary}


def with_content(node: EPContextNode, change: Callable[[bytes], bytes]) -> EPContextNode:
    """The node with its `ep_cache_context` changed."""
    return replace(node, ep_cache_context=change(node.ep_cache_context or b""))
