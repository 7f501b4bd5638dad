"""What providers that load their own contexts do alike."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
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


def test_a_failed_load_takes_nothing() -> None:
    shared = sharing(a="graph a")
    with pytest.raises(InvalidGraph, match="no context of the model has the graph 'unknown'"):
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
