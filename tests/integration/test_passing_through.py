"""What no execution provider takes stays on the default EP, around its partitions.

Strings, sequences and optionals pass through; a model of nothing else is refused in words that name
what builds it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from epctx import api
from epctx.engine.report import GroupReport
from epctx.errors import CompileError, ModelError
from epctx.graph.epcontext import read_all

QNN = "QNNExecutionProvider"
FLOAT, STRING = TensorProto.FLOAT, TensorProto.STRING
REFERENCE = {"provider": "ReferenceExecutionProvider"}
HTP = {"provider": QNN, "options": {"soc_model": "60"}}
EPS = [
    pytest.param(REFERENCE, id="reference"),
    pytest.param(HTP, id="qnn", marks=pytest.mark.needs_device(QNN)),
]
value = helper.make_tensor_value_info


def weight(name: str, *shape: int) -> onnx.TensorProto:
    rng = np.random.default_rng(sum(name.encode()))
    return numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)


def save(
    folder: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> None:
    weights = [weight("w", 8, 4), weight("v", 4, 4)]
    used = {name for node in nodes for name in node.input}
    graph = helper.make_graph(
        nodes, "g", inputs, outputs, [each for each in weights if each.name in used]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), folder / "m.onnx")


def built(folder: Path, ep: Mapping[str, object] | None, **verify: object) -> GroupReport:
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx"}},
        **({"execution_providers": {"ep": ep}} if ep else {}),
        "model_groups": {
            "g": {"models": ["m"], "execution_providers": ["ep"] if ep else [], "verify": verify}
        },
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    report = api.build(folder / "m.yaml", out=folder / "dist")
    return report.groups[0]


def on_eps(folder: Path) -> int:
    model = onnx.load(folder / "dist" / "m" / "default" / "g" / "m_ctx.onnx")
    return len(read_all(model))


def node(op_type: str, inputs: Sequence[str], outputs: Sequence[str], **how: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, outputs, name=f"{op_type}_{outputs[0]}", **how)


def agrees(group: GroupReport) -> bool:
    assert group.verify is not None
    assert all(numbers.passed for numbers in group.verify.numbers)
    return any("agree with the source model" in f.message for f in group.verify.findings)


@pytest.mark.parametrize("ep", EPS)
def test_strings_are_read_and_made_around_a_partition(
    tmp_path: Path, ep: dict[str, object]
) -> None:
    ml = {"domain": "ai.onnx.ml"}
    to_float = {**ml, "keys_strings": ["a", "b"], "values_floats": [1.0, 2.0]}
    to_word = {**ml, "keys_int64s": [0, 1, 2, 3], "values_strings": ["p", "q", "r", "s"]}
    save(
        tmp_path,
        [
            node("LabelEncoder", ["s"], ["i"], **to_float),
            node("Add", ["i", "x"], ["a"]),
            node("MatMul", ["a", "w"], ["m"]),
            node("ArgMax", ["m"], ["k"], axis=1, keepdims=0),
            node("LabelEncoder", ["k"], ["word"], **to_word),
        ],
        [value("s", STRING, [1, 8]), value("x", FLOAT, [2, 8])],
        [value("word", STRING, [2]), value("m", FLOAT, [2, 4])],
    )
    words = np.array([list("abababab")])
    np.savez(tmp_path / "in.npz", s=words, x=np.ones((2, 8), np.float32))
    assert agrees(built(tmp_path, ep, inputs={"files": ["in.npz"]}))
    assert on_eps(tmp_path) == 1


@pytest.mark.parametrize("ep", EPS)
def test_sequences_lie_between_partitions_and_come_out(
    tmp_path: Path, ep: dict[str, object]
) -> None:
    save(
        tmp_path,
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("SplitToSequence", ["a"], ["q"], axis=0),
            node("SequenceInsert", ["q", "b"], ["all"]),
            node("ConcatFromSequence", ["all"], ["c"], axis=0),
            node("MatMul", ["c", "v"], ["y"]),
        ],
        [value("x", FLOAT, [2, 8]), value("b", FLOAT, [1, 4])],
        [value("y", FLOAT, [3, 4]), helper.make_tensor_sequence_value_info("all", FLOAT, None)],
    )
    group = built(tmp_path, ep)
    assert agrees(group) and on_eps(tmp_path) >= 1
    assert group.verify is not None
    assert {numbers.output for numbers in group.verify.numbers} == {
        "y", "all[0]", "all[1]", "all[2]",
    }  # fmt: skip


@pytest.mark.parametrize("ep", EPS)
def test_optionals_lie_between_partitions(tmp_path: Path, ep: dict[str, object]) -> None:
    save(
        tmp_path,
        [
            node("MatMul", ["x", "w"], ["a"]),
            node("Optional", ["a"], ["o"]),
            node("OptionalGetElement", ["o"], ["b"]),
            node("MatMul", ["b", "v"], ["y"]),
        ],
        [value("x", FLOAT, [2, 8])],
        [value("y", FLOAT, [2, 4])],
    )
    assert agrees(built(tmp_path, ep)) and on_eps(tmp_path) >= 1


@pytest.mark.parametrize("ep", EPS)
def test_what_no_ep_takes_any_node_of_builds_without_one(
    tmp_path: Path, ep: dict[str, object]
) -> None:
    ml = {"domain": "ai.onnx.ml", "keys_strings": ["a", "b"], "values_strings": ["c", "d"]}
    save(
        tmp_path,
        [node("LabelEncoder", ["s"], ["t"], **ml)],
        [value("s", STRING, [8])],
        [value("t", STRING, [8])],
    )
    with pytest.raises(CompileError, match="no execution provider takes any node") as caught:
        built(tmp_path, ep)
    assert caught.value.exit_code == 6
    (key, items) = re.findall(r"`(execution_providers): (\[\])`", caught.value.remedy)[0]
    assert (key, yaml.safe_load(items)) == ("execution_providers", [])
    np.savez(tmp_path / "in.npz", s=np.array(list("abababab")))
    assert agrees(built(tmp_path, None, inputs={"files": ["in.npz"]})) and on_eps(tmp_path) == 0


def test_maps_are_refused_with_what_makes_a_model_without_them(tmp_path: Path) -> None:
    outputs = onnx.ValueInfoProto(name="y")
    of = outputs.type.sequence_type.elem_type.map_type
    of.key_type, of.value_type.tensor_type.elem_type = TensorProto.INT64, FLOAT
    labels = {"domain": "ai.onnx.ml", "classlabels_int64s": [0, 1, 2, 3]}
    save(
        tmp_path,
        [node("MatMul", ["x", "w"], ["p"]), node("ZipMap", ["p"], ["y"], **labels)],
        [value("x", FLOAT, [2, 8])],
        [outputs],
    )
    with pytest.raises(ModelError, match="is a map") as caught:
        built(tmp_path, REFERENCE)
    assert "zipmap" in caught.value.remedy
