from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, numpy_helper

from epctx.errors import ModelError, StorageError
from epctx.graph.checks import soundness
from epctx.graph.serde.reader import STAND_IN
from tests.kit import onnx_text

NEWEST = 26 if ort.__version__.startswith("1.31.") else 28
"""The newest opset of the default domain that the installed onnxruntime reads."""


def _model(body: str, opsets: str = '"":17', ir_version: int = 8) -> onnx.ModelProto:
    return onnx_text.proto(body, opsets=opsets, ir_version=ir_version)


def _reason(model: onnx.ModelProto) -> str:
    message = soundness.objection(model)
    assert message is not None
    assert "epctx-check-" not in message
    return message


def test_a_sound_model_passes_and_stays_as_it_is() -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    before = model.SerializeToString()
    assert soundness.objection(model) is None
    assert model.SerializeToString() == before


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (
            "g (float[N] x) => (float[N] z) { [bad] z = Relu<color = 3>(x) }",
            ["Unrecognized attribute: color", "Name: bad OpType: Relu"],
        ),
        ("g (float[N] x) => (float[N] z) { [bad] z = Nope(x) }", ["No Op registered for Nope"]),
        ("g (float[N] x) => (float[N] z) { [bad] z = Add(x) }", ["Name: bad OpType: Add"]),
        ("g (float[N] x) => (float[N] z) { z = other.Op(x) }", ["No opset import for domain"]),
    ],
)
def test_the_checkers_words_name_the_node(body: str, parts: list[str]) -> None:
    message = _reason(_model(body))
    for part in parts:
        assert part in message


def test_weights_that_are_elsewhere_are_not_looked_for() -> None:
    model = _model("g (float[2, 8] x) => (float[2, 3] z) { z = MatMul(x, w) }")
    weight = TensorProto(name="w", dims=[8, 3], data_type=1, data_location=TensorProto.EXTERNAL)
    weight.external_data.add(key="location", value=STAND_IN)
    weight.external_data.add(key="offset", value="123456789")
    model.graph.initializer.append(weight)
    assert soundness.objection(model) is None


def test_a_tensor_with_two_kinds_of_data_is_refused() -> None:
    model = _model("g (float[2] x) => (float[2] z) { z = Add(x, w) }")
    weight = numpy_helper.from_array(np.zeros(2, np.float32), "w")
    weight.float_data.extend([1, 2])
    model.graph.initializer.append(weight)
    assert "one and only one value field" in _reason(model)


def test_no_place_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    with pytest.raises(StorageError, match="no place for temporary files") as caught:
        soundness.objection(model)
    assert "TMPDIR" in str(caught.value)


def test_a_border_of_unknown_rank_is_no_fault() -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.ClearField("shape")
    before = model.SerializeToString()
    assert soundness.objection(model) is None
    assert model.SerializeToString() == before


@pytest.mark.parametrize("opsets", ['"":17', '"":26', '"":17, "com.microsoft":1, "mine":99'])
def test_opsets_that_onnxruntime_reads(opsets: str) -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }", opsets)
    soundness.require_known_opsets(model, where="m.onnx")


@pytest.mark.parametrize(
    ("opsets", "parts"),
    [
        ('"":99', ["opset 99 of domain 'ai.onnx'", "does not read it", f"till opset {NEWEST}"]),
        ('"":17, "com.microsoft":9', ["opset 9 of domain 'com.microsoft'", "till opset 1"]),
        ('"":17, "ai.onnx.ml":50', ["opset 50 of domain 'ai.onnx.ml'"]),
    ],
)
def test_opsets_that_it_does_not_read(opsets: str, parts: list[str]) -> None:
    model = _model("g (float[N] x) => (float[N] z) { z = Relu(x) }")
    del model.opset_import[:]
    for each in opsets.split(", "):
        domain, version = each.split(":")
        model.opset_import.add(domain=domain.strip('"'), version=int(version))
    with pytest.raises(ModelError) as caught:
        soundness.require_known_opsets(model, where="m.onnx")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("domain", "version"), [("", NEWEST), ("ai.onnx.ml", 5), ("com.microsoft", 1), ("own", None)]
)
def test_the_newest_opset_of_a_domain(domain: str, version: int | None) -> None:
    assert soundness.newest(domain) == version
