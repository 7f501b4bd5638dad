"""What a provider says of itself, and which nodes it takes."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import onnx_ir as ir

from epctx.graph.serde import canonical
from epctx.provider_tests.building import model
from epctx.provider_tests.subject import Subject
from epctx.providers.base import ExecutionProvider


class Identity(Subject):
    """Tests of names, fingerprint and capability."""

    def test_it_names_itself(self, provider: ExecutionProvider) -> None:
        """`name`, `label` and `sources` are what file names and nodes can hold."""
        assert provider.name
        assert re.fullmatch(r"[A-Za-z0-9_]([A-Za-z0-9_.+-]*[A-Za-z0-9_+-])?", provider.label)
        assert provider.sources and all(provider.sources)
        flags = (provider.isolated, provider.can_share, provider.native)
        assert all(isinstance(flag, bool) for flag in flags)

    def test_its_fingerprint_is_the_same_each_time(self, provider: ExecutionProvider) -> None:
        """A fingerprint is strings, and two providers of the same options have the same."""
        first, second = provider.fingerprint(), self.create().fingerprint()
        assert first.toolchain and first == second
        json.dumps([dict(first.toolchain), dict(first.host)])

    def test_it_is_made_without_side_effects(self, tmp_path: Path) -> None:
        """Making one and asking for its fingerprint writes nothing to the current folder."""
        before = Path.cwd()
        os.chdir(tmp_path)
        try:
            self.create().fingerprint()
        finally:
            os.chdir(before)
        assert not list(tmp_path.iterdir())

    def test_it_takes_nodes_of_the_main_graph(self, provider: ExecutionProvider) -> None:
        """`get_capability` answers with the model's own nodes, each once, and changes nothing."""
        proto = ir.serde.deserialize_model(model())
        before = canonical.serialize(proto)
        capability = provider.get_capability(proto)
        nodes = list(capability.nodes)
        assert {"MatMul", "Add", "Relu"} <= {node.op_type for node in nodes}
        assert all(node.graph is proto.graph for node in nodes)
        assert len(set(nodes)) == len(nodes)
        assert not set(nodes) & set(capability.declined)
        assert all(capability.declined.values()), "a node is declined without a reason"
        assert canonical.serialize(proto) == before
