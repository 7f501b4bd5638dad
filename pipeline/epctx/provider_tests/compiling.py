"""What a workspace makes of a model's partitions."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.provider_tests.building import build, group, model, partition
from epctx.provider_tests.subject import Subject, refer_to
from epctx.providers.base import ExecutionProvider


class Compiling(Subject):
    """Tests of replacements, nodes, binaries, embed modes, prefix and determinism."""

    def test_each_partition_is_replaced(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """One replacement a partition, with its inputs and outputs, typed."""
        part = partition(provider, "m", model(barriers=1), split=True)
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        try:
            replaced = workspace.compile(part, part.partitions)
            assert [r.partition for r in replaced] == list(part.partitions)
            for replacement in replaced:
                graph, own = replacement.fragment.graph, replacement.partition
                assert {v.name for v in graph.inputs} <= {v.name for v in own.inputs}
                assert {v.name for v in graph.outputs} == {v.name for v in own.outputs}
                assert all(v.type is not None and v.shape is not None for v in graph.outputs)
        finally:
            workspace.close()

    def test_its_nodes_say_what_they_are(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """`source` is one that it accepts; names are unique; one primary node at least."""
        built = build(provider, tmp_path, {"m": model(barriers=2)}, split=True)
        nodes = built.nodes["m"]
        assert len(nodes) >= 3, "the partitions were not kept apart"
        assert {node.source for node in nodes} <= provider.sources
        assert len({node.name for node in nodes}) == len(nodes)
        assert nodes[0].main_context == 1
        for node in nodes:
            assert node.embed_mode == 0
            assert node.main_context == 1 or not node.ep_cache_context

    def test_embed_mode_0_makes_one_binary(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """`[model]_[ep].bin`, beside the model, whatever the number of partitions."""
        built = build(provider, tmp_path, {"m": model(barriers=2)}, split=True)
        assert built.binaries == (f"m_{provider.label}.bin",)
        refer_to(built, built.binaries[0])
        assert sorted(built.contents()) == sorted(["m_ctx.onnx", *built.binaries])

    def test_embed_mode_1_makes_none(self, provider: ExecutionProvider, tmp_path: Path) -> None:
        """The first node carries the payload."""
        built = build(provider, tmp_path, {"m": model(barriers=1)}, embed=True, split=True)
        assert not built.binaries and list(built.contents()) == ["m_ctx.onnx"]
        nodes = built.nodes["m"]
        assert all(node.embed_mode == 1 for node in nodes)
        assert nodes[0].main_context == 1 and nodes[0].ep_cache_context

    def test_the_prefix_is_put_before_names(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Before the node's name and `partition_name`, where the EP can choose them."""
        built = build(provider, tmp_path, {"m": model()}, prefix="pre_")
        for node in built.nodes["m"]:
            names = {"name": node.name, "partition_name": node.partition_name or ""}
            for place in names.keys() & provider.prefixed:
                assert names[place].startswith("pre_"), f"its {place} has no prefix"

    def test_an_empty_workspace_has_no_binary(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Nothing compiled, nothing written; `close` may be called again."""
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        assert not workspace.finish()
        workspace.close()
        workspace.close()

    def test_a_binary_can_be_streamed_again(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """`chunks` starts afresh each time."""
        part = partition(provider, "m", model())
        workspace = provider.open_workspace(group(["m"], tmp_path, embed=False, prefix=""))
        try:
            workspace.compile(part, part.partitions)
            (binary,) = workspace.finish()
            assert b"".join(binary.chunks()) == b"".join(binary.chunks()) != b""
        finally:
            workspace.close()

    def test_fresh_workspaces_make_the_same_bytes(
        self, provider: ExecutionProvider, tmp_path: Path
    ) -> None:
        """Every file, in two workspaces of two providers, in two folders."""
        if provider.isolated:
            pytest.skip("it needs a fresh process for each session group")
        models = {"m": model(barriers=1)}
        first = build(provider, tmp_path / "one", models, split=True)
        second = build(self.create(), tmp_path / "two" / "deeper", models, split=True)
        assert first.contents() == second.contents()
