"""What providers that load their own contexts do alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir
import pytest

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.graph.model import Partition
from epctx.providers import contexts
from epctx.providers.base import SharedContexts


def node(name: str, content: bytes | None = b"m.bin", *, embed: bool = False) -> EPContextNode:
    return EPContextNode(
        name=name,
        inputs=("x",),
        outputs=("y",),
        main_context=0 if content is None else 1,
        ep_cache_context=content,
        embed_mode=1 if embed else 0,
        partition_name=name,
        source="s",
    )


def sharing(**graphs: object) -> SharedContexts:
    shared = SharedContexts()
    shared.graphs.update(graphs)
    return shared


CONTEXT = {"a": "graph a", "b": "graph b", "c": "graph c"}


class Reader:
    """Counts what is read."""

    def __init__(self) -> None:
        self.read: list[str] = []

    def __call__(self, primary: EPContextNode) -> dict[str, str]:
        self.read.append(primary.name)
        return CONTEXT


def load(nodes: list[EPContextNode], shared: SharedContexts | None, reader: Reader) -> list[str]:
    return contexts.load(nodes, shared, key=lambda n: n.name, read=reader, kind=str)


def test_a_context_is_read_once_for_all_nodes_and_the_rest_is_left() -> None:
    reader, shared = Reader(), sharing()
    assert load([node("a"), node("b", None)], shared, reader) == ["graph a", "graph b"]
    assert reader.read == ["a"] and shared.graphs == {"c": "graph c"}


def test_a_graph_of_the_workspace_is_taken_and_nothing_read() -> None:
    reader, shared = Reader(), sharing(b="graph b", c="graph c")
    assert load([node("b")], shared, reader) == ["graph b"]
    assert not reader.read and shared.graphs == {"c": "graph c"}


def test_what_is_of_another_kind_in_the_workspace_is_not_used() -> None:
    assert load([node("a")], sharing(a=1), Reader()) == ["graph a"]


def test_without_a_workspace_everything_is_read() -> None:
    reader = Reader()
    assert load([node("a"), node("c")], None, reader) == ["graph a", "graph c"]
    assert reader.read == ["a"], "both refer to one context"


def test_a_failed_load_takes_nothing() -> None:
    shared = sharing(a="graph a")
    with pytest.raises(InvalidGraph, match="'unknown' is in no context of the model"):
        load([node("a"), node("unknown")], shared, Reader())
    assert shared.graphs == {"a": "graph a"}


def test_a_graph_that_makes_no_kernel_is_put_back_and_nothing_else_left() -> None:
    shared = sharing(a="graph a")

    def make(own: EPContextNode, graph: str) -> int:
        if own.name == "c":
            raise InvalidGraph("does not fit", remedy="build it again")
        return len(graph)

    def load(*names: str) -> list[int]:
        nodes = [node(name) for name in names]
        read, key = Reader(), lambda n: n.name
        return contexts.load(nodes, shared, key=key, read=read, kind=str, make=make)

    with pytest.raises(InvalidGraph, match="does not fit"):
        load("a", "c")
    assert shared.graphs == {"a": "graph a"}
    assert load("a", "b") == [7, 7]
    assert shared.graphs == {"c": "graph c"}


def test_a_provider_says_itself_what_it_found_in_a_graphs_place() -> None:
    def absent(own: EPContextNode, seen: Sequence[Mapping[str, str]]) -> InvalidGraph:
        return InvalidGraph(f"{own.name} is not in {[*seen[0]]}", remedy="build it again")

    with pytest.raises(InvalidGraph, match=r"d is not in \['a', 'b', 'c'\]"):
        contexts.load(
            [node("d")], None, key=lambda n: n.name, read=Reader(), kind=str, absent=absent
        )


def test_a_secondary_node_without_a_primary_one_finds_nothing() -> None:
    with pytest.raises(InvalidGraph):
        load([node("a", None)], None, Reader())


def test_a_payload_is_the_context(tmp_path: Path) -> None:
    assert bytes(contexts.content_of(node("a", b"payload", embed=True), None)) == b"payload"
    (tmp_path / "m.bin").write_bytes(b"content")
    assert bytes(contexts.content_of(node("a"), tmp_path)) == b"content"


@pytest.mark.parametrize(
    ("content", "folder", "words"),
    [
        (b"", True, "has no ep_cache_context"),
        (b"m.bin", False, "the model was loaded from bytes"),
        (b"gone.bin", True, "it is not in "),
        (b"../m.bin", True, "cannot be used"),
        (b"sub", True, "is a folder"),
        (b"nul\0.bin", True, "cannot be used"),
    ],
)
def test_a_context_that_is_not_there(
    tmp_path: Path, content: bytes, folder: bool, words: str
) -> None:
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "sub").mkdir()
    (tmp_path / "m.bin").write_bytes(b"outside")
    with pytest.raises(InvalidGraph) as caught:
        contexts.content_of(node("a", content), tmp_path / "m" if folder else None)
    assert words in str(caught.value)


def test_a_node_takes_the_place_of_its_partition() -> None:
    text = '<ir_version: 9, opset_import: ["" : 18]> g (float[2] x) => (float[2] y) {y = Relu(x)}'
    model = ir.from_onnx_text(text)
    partition = Partition(
        provider=0,
        nodes=tuple(model.graph),
        inputs=tuple(model.graph.inputs),
        outputs=tuple(model.graph.outputs),
        initializers=(),
    )
    made = contexts.replace_by_node(model, partition, node("a"))
    assert made.partition is partition
    (own,) = made.fragment.graph
    assert (own.op_type, own.domain) == ("EPContext", "com.microsoft")
    (output,) = made.fragment.graph.outputs
    assert output.type == model.graph.outputs[0].type and output.shape == ir.Shape([2])
    assert output is not model.graph.outputs[0]
