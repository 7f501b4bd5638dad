from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import CompileError
from epctx.providers.hooks import BinaryGraph, BinaryTensor
from epctx.providers.onnxruntime.qnn import match
from epctx.providers.onnxruntime.qnn.binary import QnnContext


def context(*graphs: BinaryGraph, soc: int = 60) -> QnnContext:
    return QnnContext(
        build_id="v2.51.0", api="2.40.0", blob="4.0.6", blob_size=1, soc_model=soc, graphs=graphs
    )


def graph(
    name: str, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
) -> BinaryGraph:
    def tensors(values: dict[str, tuple[int, ...]]) -> tuple[BinaryTensor, ...]:
        return tuple(BinaryTensor(name=n, dtype="float_32", shape=s) for n, s in values.items())

    return BinaryGraph(name=name, inputs=tensors(inputs), outputs=tensors(outputs))


def node(name: str, inputs: str, outputs: str, overrides: str | None = None) -> ir.Node:
    def value(text: str) -> ir.Value:
        own, _, size = text.partition(":")
        return ir.Value(
            name=own, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, int(size)])
        )

    attributes = [] if overrides is None else [ir.AttrString("io_name_overrides", overrides)]
    return ir.Node(
        "com.microsoft",
        "EPContext",
        [value(text) for text in inputs.split()],
        attributes,
        outputs=[value(text) for text in outputs.split()],
        name=name,
    )


def test_a_binary_of_its_nodes() -> None:
    both = context(
        graph("a", {"x": (1, 4)}, {"y": (1, 4)}), graph("b", {"x": (1, 8)}, {"y": (1, 8)})
    )
    nodes = [node("b", "x:8", "y:8"), node("a", "x:4", "y:4")]
    match.require(both, nodes, soc=60, where="a_qnn.bin")


def test_a_single_graph_is_found_under_another_name_and_by_overrides() -> None:
    one = context(graph("QNN_1", {"x": (1, 4)}, {"y": (1, 4)}))
    named = node("eye_QNN_1", "x_q:4", "y_q:4", overrides="x_q=x;y_q=y;")
    match.require(one, [named], soc=None, where="a_qnn.bin")


@pytest.mark.parametrize(
    ("nodes", "soc", "words"),
    [
        ([node("a", "x:4", "y:4")], 57, "it is for soc_model 60"),
        ([node("a", "x:4", "y:4"), node("b", "x:4", "y:4")], 60, "it holds a;"),
        ([node("a", "x:4 z:4", "y:4")], 60, "has the inputs x;"),
        ([node("a", "x:4", "z:4")], 60, "has the outputs y;"),
        ([node("a", "x:5", "y:4")], 60, "x of graph a has the shape"),
    ],
)
def test_a_binary_of_other_nodes(nodes: list[ir.Node], soc: int, words: str) -> None:
    one = context(graph("a", {"x": (1, 4)}, {"y": (1, 4)}))
    with pytest.raises(CompileError) as caught:
        match.require(one, nodes, soc=soc, where="a_qnn.bin")
    assert words in str(caught.value)
