from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from epctx.graph.dataflow import captured, subgraphs
from epctx.graph.soundness import session_error
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import ModelSource
from epctx.providers import question
from epctx.providers.question import Shapes
from epctx.stages import load
from tests.kit import oddities, onnx_text


def _asked(model: ir.Model, node: ir.Node, *, shapes: Shapes = "ranks") -> ir.Model:
    outer = [value for value in node.inputs if value is not None]
    inner = [value for value in captured(node) if value.graph is node.graph]
    return question.make(model, node, list(dict.fromkeys([*outer, *inner])), shapes=shapes)


def _loaded(name: str, folder: Path) -> ir.Model:
    onnx.save(oddities.INSIDE[name](), folder / "m.onnx")
    return load.run(ModelSource(name="m", path=folder / "m.onnx")).model


@pytest.mark.parametrize("name", oddities.INSIDE)
def test_no_tensor_of_a_question_is_in_a_file(name: str, tmp_path: Path) -> None:
    model = _loaded(name, tmp_path)
    before = ir.serde.serialize_model(model).SerializeToString(deterministic=True)
    for node in model.graph:
        if node.op_type != "Constant":
            asked = ir.serde.serialize_model(_asked(model, node))
            assert b"m.onnx" not in asked.SerializeToString()
            assert session_error(asked.SerializeToString()) is None, node.op_type
    assert ir.serde.serialize_model(model).SerializeToString(deterministic=True) == before


def test_constants_of_a_body_are_inputs_and_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = _loaded("a constant of 80 kB in Loop If", tmp_path)
    monkeypatch.setattr(MappedTensor, "view", None)
    (outer,) = (node for node in model.graph if node.op_type == "If")
    asked = _asked(model, outer)
    assert [n.op_type for g in subgraphs(asked.graph[0]) for n in g].count("Constant") == 0
    assert asked.graph.inputs[-1].shape == [20_000]


def test_a_constant_that_a_body_gives_stays_in_it() -> None:
    values = ", ".join("1" for _ in range(300))
    constant = f"Constant <value = float[300] {{{values}}}> ()"
    branches = ", ".join(
        f"{kind}_branch = {kind} () => (float[300] {out}) {{ {out} = {constant} }}"
        for kind, out in (("then", "p"), ("else", "q"))
    )
    model = onnx_text.model(f"g (bool c) => (float[300] y) {{ y = If(c) <{branches}> }}")
    asked = _asked(model, model.graph[0])
    assert len(asked.graph.inputs) == 1
    assert session_error(ir.serde.serialize_model(asked).SerializeToString()) is None


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        ("whole", ["[]", "[2,N]"]),
        ("ranks", ["[]", "[?,?]"]),
        ("none", ["None", "None"]),
    ],
)
def test_inputs_have_as_much_of_their_shapes_as_is_asked(shapes: Shapes, wanted: list[str]) -> None:
    model = onnx_text.model("g (float s, float[2, N] x) => (float[2, N] y) { y = Add(s, x) }")
    asked = _asked(model, model.graph[0], shapes=shapes)
    found = [str(value.shape) for value in asked.graph.inputs]
    assert [text.replace("None", "?") if "[" in text else text for text in found] == wanted
    assert np.all([value.type == ir.TensorType(ir.DataType.FLOAT) for value in asked.graph.inputs])
