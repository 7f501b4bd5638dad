"""What no execution provider takes stays on the default EP, around its partitions.

Strings, sequences and optionals pass through; a model of nothing else is refused in words that name
what builds it.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from onnx import TensorProto, helper, numpy_helper

from epctx import api
from epctx.engine.report import GroupReport
from epctx.errors import CompileError
from epctx.graph.epcontext import read_all
from epctx.runtime import InferenceSession
from epctx.verification.findings import FolderReport
from tests.kit import command_line
from tests.kit.inline import Inline

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
    with nullcontext() if ep is HTP else mock.patch("epctx.worker.pool.Worker", Inline):
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


def test_sequences_are_as_long_as_the_data_says(tmp_path: Path) -> None:
    save(
        tmp_path,
        [
            node("MatMul", ["x", "w"], ["y"]),
            node("Relu", ["y"], ["positive"]),
            node("NonZero", ["positive"], ["places"]),
            node("SplitToSequence", ["places"], ["s"], axis=1),
        ],
        [value("x", FLOAT, [2, 8])],
        [
            value("y", FLOAT, [2, 4]),
            helper.make_tensor_sequence_value_info("s", TensorProto.INT64, None),
        ],
    )
    group = built(tmp_path, REFERENCE, inputs={"count": 2, "seed": 1})
    assert agrees(group) and group.verify is not None
    counts = Counter(each.input_set for each in group.verify.numbers)
    assert len(set(counts.values())) == 2


def test_an_empty_sequence_is_not_checkable(tmp_path: Path) -> None:
    empty = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    save(
        tmp_path,
        [node("MatMul", ["x", "w"], ["y"]), node("SequenceEmpty", [], ["s"], dtype=FLOAT)],
        [value("x", FLOAT, [2, 8])],
        [value("y", FLOAT, [2, 4]), empty],
    )
    group = built(tmp_path, REFERENCE)
    assert agrees(group) and group.verify is not None
    unchecked = [f.message for f in group.verify.findings if f.outcome == "not checkable"]
    assert unchecked == ["output 's[]': it is empty (of the files)"]
    verify = ("verify", "dist", "--manifest", "m.yaml", "--strict")
    ended = command_line.inside(*verify, cwd=tmp_path)
    assert ended.returncode == 7 and "output 's[]': it is empty" in ended.stdout


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


def map_of(name: str, key: int, *, in_sequence: bool = False) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    kind = info.type.sequence_type.elem_type if in_sequence else info.type
    kind.map_type.key_type = key
    kind.map_type.value_type.tensor_type.elem_type = FLOAT
    return info


def classifier(folder: Path, *labels: str, typed: bool = True) -> None:
    """As skl2onnx writes a classifier: labels, and a map from them to probabilities."""
    ml = {"domain": "ai.onnx.ml", "classlabels_strings": list(labels)}
    zipped = map_of("z", STRING, in_sequence=True) if typed else onnx.ValueInfoProto(name="z")
    save(
        folder,
        [
            node("MatMul", ["x", "w"], ["y"]),
            node("Softmax", ["y"], ["p"]),
            node("ArgMax", ["p"], ["k"], axis=1, keepdims=0),
            node("ZipMap", ["p"], ["z"], **ml),
        ],
        [value("x", FLOAT, [2, 8])],
        [value("k", TensorProto.INT64, [2]), zipped],
    )


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("typed", [True, False])
def test_maps_are_made_behind_a_partition_and_compared(
    tmp_path: Path, ep: dict[str, object], typed: bool
) -> None:
    classifier(tmp_path, "d", "c", "b", "a", typed=typed)
    group = built(tmp_path, ep)
    assert agrees(group) and on_eps(tmp_path) == 1
    assert group.verify is not None
    zipped = [each for each in group.verify.numbers if each.output.startswith("z")]
    assert {each.output for each in zipped} == {"z{'a', 'b', 'c', 'd'}"}
    assert all(each.comparison.dtype == "float32" for each in zipped)
    assert all(each.comparison.checkable >= 0.05 for each in zipped)
    published = tmp_path / "dist" / "m" / "default" / "g" / "m_ctx.onnx"
    kind = onnx.load(published).graph.output[1].type
    assert kind == map_of("z", STRING, in_sequence=True).type
    ran = command_line.epctx("run", "m_ctx.onnx", "--format", "json", cwd=published.parent)
    outputs = json.loads(ran.stdout)["cases"][0]["outputs"]
    assert [output["name"] for output in outputs] == ["k", "z{'a', 'b', 'c', 'd'}"]


@pytest.mark.parametrize("ep", EPS)
def test_what_follows_a_scaler_is_compiled(tmp_path: Path, ep: dict[str, object]) -> None:
    ml = {"domain": "ai.onnx.ml"}
    save(
        tmp_path,
        [
            node("Scaler", ["x"], ["s"], **ml, offset=[0.5], scale=[2.0]),
            node("Cast", ["s"], ["c"], to=FLOAT),
            node("MatMul", ["c", "w"], ["y"]),
            node("Softmax", ["y"], ["p"]),
            node("ZipMap", ["p"], ["z"], **ml, classlabels_int64s=[0, 1, 2, 3]),
        ],
        [value("x", FLOAT, [2, 8])],
        [map_of("z", TensorProto.INT64, in_sequence=True)],
    )
    assert agrees(built(tmp_path, ep)) and on_eps(tmp_path) >= 1


@pytest.mark.parametrize("change", ["keys", "values"])
def test_maps_of_other_keys_or_values_are_told(tmp_path: Path, change: str) -> None:
    classifier(tmp_path, "a", "b", "c", "d")
    built(tmp_path, REFERENCE)
    if change == "keys":
        classifier(tmp_path, "a", "b", "c", "e")
    else:
        model = onnx.load(tmp_path / "m.onnx")
        model.graph.initializer[0].CopyFrom(weight("w", 8, 4))
        changed = numpy_helper.to_array(model.graph.initializer[0]) * np.float32(1.1)
        model.graph.initializer[0].CopyFrom(numpy_helper.from_array(changed, "w"))
        onnx.save(model, tmp_path / "m.onnx")
    found = api.verify(tmp_path / "dist" / "m", manifest=tmp_path / "m.yaml")
    failed = [f.message for f in found.findings("fail")]
    assert any("output 'z{" in message for message in failed), failed


@pytest.mark.parametrize("ep", EPS)
@pytest.mark.parametrize("op_type", ["DictVectorizer", "CastMap"])
def test_maps_that_are_fed_lie_before_a_partition(
    tmp_path: Path, ep: dict[str, object], op_type: str
) -> None:
    ml: dict[str, Any] = {"domain": "ai.onnx.ml"}
    if op_type == "CastMap":
        ml |= {"cast_to": "TO_FLOAT", "map_form": "SPARSE", "max_map": 4}
    else:
        ml |= {"int64_vocabulary": [0, 1, 2, 3]}
    save(
        tmp_path,
        [
            node("MatMul", ["x", "w"], ["a"]),
            node(op_type, ["m"], ["b"], **ml),
            node("Add", ["a", "b"], ["y"]),
        ],
        [value("x", FLOAT, [2, 8]), map_of("m", TensorProto.INT64)],
        [value("y", FLOAT, [2, 4])],
    )
    group = built(tmp_path, ep)
    assert on_eps(tmp_path) == 1 and group.verify is not None
    told = {f.check: f for f in group.verify.findings if f.outcome == "not checkable"}
    assert "of type map, for which no values are generated" in told["outputs"].message
    assert "epctx.runtime.InferenceSession" in told["outputs"].remedy
    feeds = {"x": np.ones((2, 8), np.float32), "m": {0: 1.0, 3: 2.0}}
    file = tmp_path / "dist" / "m" / "default" / "g" / "m_ctx.onnx"
    (found,) = InferenceSession(file).run(None, feeds)
    (right,) = ort.InferenceSession(tmp_path / "m.onnx").run(None, feeds)
    assert np.allclose(found, right, atol=0.02)


def test_a_model_of_maps_alone_builds_without_an_ep(tmp_path: Path) -> None:
    labels = {"domain": "ai.onnx.ml", "classlabels_int64s": [0, 1, 2, 3]}
    scores = {
        "domain": "ai.onnx.ml",
        "coefficients": [0.5] * 32,
        "intercepts": [0.1, 0.2, 0.3, 0.4],
    }
    save(
        tmp_path,
        [
            node("LinearClassifier", ["x"], ["k", "p"], **scores, classlabels_ints=[0, 1, 2, 3]),
            node("Normalizer", ["p"], ["q"], domain="ai.onnx.ml", norm="L1"),
            node("ZipMap", ["q"], ["z"], **labels),
        ],
        [value("x", FLOAT, [2, 8])],
        [value("k", TensorProto.INT64, [2]), map_of("z", TensorProto.INT64, in_sequence=True)],
    )
    group = built(tmp_path, None)
    assert agrees(group) and on_eps(tmp_path) == 0


def composed(folder: Path) -> FolderReport:
    """What is told of the composition of `first` and `m`."""
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {name: {"path": f"{name}.onnx"} for name in ("first", "m")},
        "execution_providers": {"ep": REFERENCE},
        "model_groups": {
            "one": {"models": ["first"], "execution_providers": ["ep"]},
            "two": {"models": ["m"], "execution_providers": ["ep"]},
        },
        "compose": {"whole": {"parts": {"first": {}, "m": {}}}},
    }
    (folder / "m.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    report = api.build(folder / "m.yaml", out=folder / "dist")
    (whole,) = (group for group in report.groups if group.group == "whole")
    assert whole.verify is not None
    return whole.verify


def test_maps_come_out_of_a_composition(tmp_path: Path) -> None:
    save(
        tmp_path,
        [node("MatMul", ["a", "w"], ["b"]), node("Concat", ["b", "b"], ["x"], axis=1)],
        [value("a", FLOAT, [2, 8])],
        [value("x", FLOAT, [2, 8])],
    )
    (tmp_path / "m.onnx").rename(tmp_path / "first.onnx")
    classifier(tmp_path, "a", "b", "c", "d")
    zipped = {each.output: each.passed for each in composed(tmp_path).numbers}
    assert zipped == {"k": True, "z{'a', 'b', 'c', 'd'}": True}


def test_sequences_between_the_parts_of_a_composition_are_told(tmp_path: Path) -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, None)
    save(
        tmp_path,
        [node("MatMul", ["x", "w"], ["y"]), node("SplitToSequence", ["y"], ["s"])],
        [value("x", FLOAT, [2, 8])],
        [sequence],
    )
    (tmp_path / "m.onnx").rename(tmp_path / "first.onnx")
    save(
        tmp_path,
        [
            node("ConcatFromSequence", ["s"], ["c"], axis=0),
            node("Reshape", ["c", "shape"], ["r"]),
            node("MatMul", ["r", "v"], ["z"]),
        ],
        [sequence],
        [value("z", FLOAT, [2, 4])],
    )
    model = onnx.load(tmp_path / "m.onnx")
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 4]), "shape"))
    onnx.save(model, tmp_path / "m.onnx")
    told = [f.message for f in composed(tmp_path).findings if f.outcome == "not checkable"]
    assert any("output 's' of first is not a tensor" in message for message in told), told
