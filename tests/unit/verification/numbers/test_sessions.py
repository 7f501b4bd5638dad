from __future__ import annotations

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.manifest import ModelSource
from epctx.verification.numbers import sessions
from epctx.verification.numbers.sessions import NotComparable
from tests.kit import onnx_text


def save(path: Path, text: str, *weights: onnx.TensorProto) -> Path:
    made = onnx_text.proto(text, opsets='"" : 20, "ai.onnx.ml" : 4')
    made.graph.initializer.extend(weights)
    onnx.save(made, path)
    return path


def test_types_that_numpy_does_not_have(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", "g (bfloat16[2] x) => (bfloat16[2] y) { y = Identity(x) }")
    x = np.array([1.5, -2], ml_dtypes.bfloat16)
    session = sessions.open_source(ModelSource(name="m", path=path))
    found = sessions.run_source(session, {"x": x})
    assert found["y"].dtype == ml_dtypes.bfloat16 and np.array_equal(found["y"], x)


def test_the_tensors_of_a_sequence_are_numbered(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x, x) }",
    )
    session = sessions.open_source(ModelSource(name="m", path=path))
    found = sessions.run_source(session, {"x": np.ones(2, np.float32)})
    assert list(found) == ["y[0]", "y[1]"]


def test_maps_are_named_by_their_keys(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        "g (float[1,2] x) => (seq(map(int64,float)) y) "
        "{ y = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2]> (x) }",
    )
    session = sessions.open_source(ModelSource(name="m", path=path))
    found = sessions.run_source(session, {"x": np.array([[0.5, 2]], np.float32)})
    assert list(found) == ["y{1, 2}"]
    assert found["y{1, 2}"].dtype == np.float32 and found["y{1, 2}"].tolist() == [[0.5, 2]]


def test_what_is_not_there_cannot_be_compared(tmp_path: Path) -> None:
    path = save(
        tmp_path / "m.onnx",
        "g (float[2] x) => (optional(float[2]) y) { y = Optional<type = float[2]>() }",
    )
    session = sessions.open_source(ModelSource(name="m", path=path))
    with pytest.raises(NotComparable, match="output 'y' is missing"):
        sessions.run_source(session, {"x": np.ones(2, np.float32)})


def test_errors_of_onnxruntime_become_one_line() -> None:
    long = RuntimeError(
        "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running X node. "
        "Name:'x' Status Message: indices element out of data bounds\nstack\nmore"
    )
    assert sessions.words(long) == "indices element out of data bounds"
    assert sessions.words(RuntimeError("plain")) == "plain"
    assert sessions.words(RuntimeError("")) == "RuntimeError"


def test_sessions_are_closed_in_reverse_and_nothing_stays_shared() -> None:
    from epctx.inference.loading import SHARED

    closed: list[str] = []

    class Session:
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    SHARED.leave("graph", object())
    sessions.close([Session("first"), Session("second")])  # type: ignore[list-item]
    assert closed == ["second", "first"] and len(SHARED) == 0


@pytest.mark.needs("links")
@pytest.mark.parametrize("beside", [False, True])
def test_a_changed_source_behind_links_has_its_weights(tmp_path: Path, beside: bool) -> None:
    """Weights in the model and beside it; ONNX Runtime follows no link out of a given folder."""
    blobs, folder = tmp_path / "blobs", tmp_path / "folder"
    blobs.mkdir()
    folder.mkdir()
    own, other = (np.full((32, 32), each, np.float32) for each in (2, 3))
    text = "g (float[1,32] x) => (float[1,32] y) { h = MatMul(x, own) y = MatMul(h, other) }"
    weights = numpy_helper.from_array(own, "own"), numpy_helper.from_array(other, "other")
    proto = onnx.load(save(blobs / "m.onnx", text, *weights))
    (blobs / "w").write_bytes(other.tobytes())
    tensor = proto.graph.initializer[1]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="w")
    (blobs / "m.onnx").write_bytes(proto.SerializeToString())
    (folder / "m.onnx").symlink_to(blobs / "m.onnx")
    (folder / "w").symlink_to(blobs / "w")
    if beside:
        (folder / "w").unlink()
        (blobs / "w").rename(folder / "w")
    source = ModelSource(name="m", path=folder / "m.onnx")
    changed = sessions.mapped(source)
    found = numpy_helper.to_array(changed.graph.initializer[1], str(sessions.data_folder(source)))
    assert np.array_equal(found, other)
    feeds = {"x": np.ones((1, 32), np.float32)}
    model = changed.SerializeToString()
    (y,) = sessions.open_source(source, changed=model).run(None, feeds)
    assert np.array_equal(y, feeds["x"] @ own @ other)


@pytest.mark.needs("links")
def test_a_changed_source_on_another_drive_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Simulates what Windows raises; Linux has no drives."""
    (tmp_path / "folder").mkdir()
    weights = numpy_helper.from_array(np.ones((32, 32), np.float32), "w")
    model = save(
        tmp_path / "m.onnx", "g (float[1,32] x) => (float[1,32] y) { y = MatMul(x, w) }", weights
    )
    link = tmp_path / "folder" / "m.onnx"
    link.symlink_to(model)

    def refuse(*paths: object) -> str:
        raise ValueError("Paths don't have the same drive")

    monkeypatch.setattr(os.path, "commonpath", refuse)
    monkeypatch.setattr(os.path, "relpath", refuse)
    with pytest.raises(ModelError, match="on another drive") as raised:
        sessions.mapped(ModelSource(name="m", path=link))
    assert raised.value.code == Code.DATA_REFUSED
    assert raised.value.remedy == "copy the file in place of the link"


def test_a_source_of_uint8_and_int8_is_not_saturated(tmp_path: Path) -> None:
    """255 * 127 * 2 is more than an int16 has, to which x86 without VNNI adds two products."""
    path = save(
        tmp_path / "m.onnx",
        "g (uint8[1,64] x) => (float[1,16] y) { s = MatMulInteger(x, w) y = Cast <to = 1> (s) }",
        numpy_helper.from_array(np.full((64, 16), 127, np.int8), "w"),
    )
    session = sessions.open_source(ModelSource(name="m", path=path))
    (found,) = session.run(None, {"x": np.full((1, 64), 255, np.uint8)})
    assert np.array_equal(found, np.full((1, 16), 64 * 127 * 255, np.float32))
