"""QNN context binaries and compatibility strings, held against what was asked."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from epctx.errors import CompileError
from epctx.manifest import OptionValue
from epctx.providers.base import BinaryGraph, BinaryTensor
from epctx.providers.onnxruntime.qnn import match
from epctx.providers.onnxruntime.qnn.binary import QnnBinary, QnnContext
from epctx.providers.onnxruntime.qnn.match import Compatibility
from epctx.providers.onnxruntime.qnn.options import QnnOptions


def context(*graphs: BinaryGraph, soc: int = 60) -> QnnContext:
    return QnnContext(
        build_id="v2.51.0",
        api="2.40.0",
        blob="4.0.6",
        blob_size=1,
        size=2,
        soc_model=soc,
        graphs=graphs,
    )


def single(*graphs: BinaryGraph) -> QnnBinary:
    return QnnBinary(contexts=(context(*graphs),), shared=None)


def graph(
    name: str, inputs: dict[str, tuple[int, ...]], outputs: dict[str, tuple[int, ...]]
) -> BinaryGraph:
    def tensors(values: dict[str, tuple[int, ...]]) -> tuple[BinaryTensor, ...]:
        return tuple(BinaryTensor(name=n, dtype="float_32", shape=s) for n, s in values.items())

    return BinaryGraph(name=name, inputs=tensors(inputs), outputs=tensors(outputs))


def node(
    name: str, inputs: str, outputs: str, overrides: str | None = None, *, flexible: int = 0
) -> ir.Node:
    def value(text: str) -> ir.Value:
        own, _, size = text.partition(":")
        return ir.Value(
            name=own, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1, int(size)])
        )

    attributes = [ir.AttrInt64("is_multi_soc_ep_context", flexible)]
    if overrides is not None:
        attributes.append(ir.AttrString("io_name_overrides", overrides))
    return ir.Node(
        "com.microsoft",
        "EPContext",
        [value(text) for text in inputs.split()],
        attributes,
        outputs=[value(text) for text in outputs.split()],
        name=name,
    )


def test_a_binary_of_its_nodes() -> None:
    both = single(
        graph("a", {"x": (1, 4)}, {"y": (1, 4)}), graph("b", {"x": (1, 8)}, {"y": (1, 8)})
    )
    nodes = [node("b", "x:8", "y:8"), node("a", "x:4", "y:4")]
    match.require(both, nodes, chips=[60], where="a_qnn.bin")


def test_a_single_graph_is_found_under_another_name_and_by_overrides() -> None:
    one = single(graph("QNN_1", {"x": (1, 4)}, {"y": (1, 4)}))
    named = node("eye_QNN_1", "x_q:4", "y_q:4", overrides="x_q=x;y_q=y;")
    match.require(one, [named], chips=(), where="a_qnn.bin")


@pytest.mark.parametrize(
    ("nodes", "soc", "words"),
    [
        ([node("a", "x:4", "y:4")], 57, "it is for soc_model 60"),
        ([node("a", "x:4", "y:4"), node("b", "x:4", "y:4")], 60, "it holds a;"),
        ([node("a", "x:4 z:4", "y:4")], 60, "has the inputs x;"),
        ([node("a", "p:4 x:4", "y:4", overrides="p=x;x=z;")], 60, "has x"),
        ([node("a", "x:4", "z:4")], 60, "has the outputs y;"),
        ([node("a", "x:5", "y:4")], 60, "x of graph a has the shape"),
    ],
)
def test_a_binary_of_other_nodes(nodes: list[ir.Node], soc: int, words: str) -> None:
    one = single(graph("a", {"x": (1, 4)}, {"y": (1, 4)}))
    with pytest.raises(CompileError) as caught:
        match.require(one, nodes, chips=[soc], where="a_qnn.bin")
    assert words in str(caught.value)


def flexible(*contexts: QnnContext) -> QnnBinary:
    return QnnBinary(contexts=contexts, shared=64)


def test_a_binary_for_several_chips() -> None:
    one = graph("a", {"x": (1, 4)}, {"y": (1, 4)})
    both = flexible(context(one, soc=60), context(one, soc=57))
    match.require(both, [node("a", "x:4", "y:4", flexible=1)], chips=[57, 60], where="a_qnn.bin")


@pytest.mark.parametrize(
    ("second", "flag", "chips", "words"),
    [
        (graph("a", {"x": (1, 4)}, {"y": (1, 4)}), 1, [60, 69], "57 (sm8650, v75), not 60"),
        (graph("a", {"x": (1, 4)}, {"y": (1, 4)}), 1, [60], "57 (sm8650, v75), not 60"),
        (graph("a", {"x": (1, 4)}, {"y": (1, 4)}), 0, [60, 57], "it is for 2 chip(s)"),
        (graph("a", {"x": (1, 8)}, {"y": (1, 4)}), 1, [60, 57], "x of graph a has the shape"),
        (graph("a", {"z": (1, 4)}, {"y": (1, 4)}), 1, [60, 57], "has the inputs z"),
    ],
)
def test_a_chip_of_several_that_is_another(
    second: BinaryGraph, flag: int, chips: list[int], words: str
) -> None:
    first = graph("a", {"x": (1, 4)}, {"y": (1, 4)})
    both = flexible(context(first, soc=60), context(second, soc=57))
    with pytest.raises(CompileError) as caught:
        match.require(both, [node("a", "x:4", "y:4", flexible=flag)], chips=chips, where="a.bin")
    assert words in str(caught.value)


def test_the_compatibility_string() -> None:
    found = Compatibility.parse("v2:6:2.51.0:5.51.0:73:60:8:0")
    assert found == Compatibility(qairt="2.51.0", archs=(73,), chips=(60,), vtcms=(8,))
    several = Compatibility.parse("v2:6:2.51.0:5.51.0:0,0:60,57:8,8:0")
    assert several == Compatibility(qairt="2.51.0", archs=(0, 0), chips=(60, 57), vtcms=(8, 8))
    broken = ("v2:6:2.51.0:5.51.0:0:x:0:0", "v2:60", "v2:6:2:5:0:60,:0:0")
    for other in ("", "v1:6:2:5:0:60:0:0", f"v2:6:2:5:0:{'9' * 5000}:0:0", *broken):
        assert Compatibility.parse(other) is None


@pytest.mark.parametrize(
    ("options", "info", "outcome", "words"),
    [
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:60:0:0", "pass", "60 (sc8380xp, v73)"),
        ({}, "v2:6:2.51.0:5.51.0:0:57:0:0", "pass", "57 (sm8650, v75)"),
        ({}, "v2:6:2.51.0:5.51.0:0:0:0:0", "pass", "0 (any chip)"),
        ({"soc_model": "60"}, "v2:6:2.51.0:5.51.0:0:57:0:0", "fail", "soc_model is 57, not 60"),
        ({"htp_arch": "73"}, "v2:6:2.51.0:5.51.0:75:0:0:0", "fail", "htp_arch is 75, not 73"),
        ({"vtcm_mb": 4}, "v2:6:2.51.0:5.51.0:0:0:8:0", "fail", "vtcm_mb is 8, not 4"),
        (
            {"soc_model": ("sm8650", "60")},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "pass",
            "60 (sc8380xp, v73), 57 (sm8650, v75)",
        ),
        (
            {"soc_model": ("60", "57", "69")},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "fail",
            "soc_model is 57 and 60, not 57 and 60 and 69",
        ),
        (
            {"soc_model": "60"},
            "v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0",
            "fail",
            "soc_model is 57 and 60, not 60",
        ),
        ({"vtcm_mb": 8}, "v2:6:2.51.0:5.51.0:0,0:60,57:8,8:0", "pass", "57"),
        ({"soc_model": "60"}, None, "fail", "it has no key"),
        ({"soc_model": "60"}, "v9:1", "not checkable", "unknown form"),
    ],
)
def test_what_the_options_ask_for_is_held_against_it(
    options: dict[str, OptionValue], info: str | None, outcome: str, words: str
) -> None:
    verdict = match.compatibility_verdict(info, QnnOptions.parse(options), key="key")
    assert (verdict.outcome, words in verdict.message) == (outcome, True), verdict
