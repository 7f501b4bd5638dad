"""Recorded outputs, and boundaries of generating sessions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from epctx.errors import StorageError
from epctx.providers.base import Boundary, Port
from epctx.verification.numbers import recordings
from epctx.verification.numbers.recordings import boundary_differences
from tests.kit.building import Array

FEEDS: dict[str, Array] = {"x": np.arange(4, dtype=np.float32)}


def test_outputs_come_back_by_name_type_and_bits(tmp_path: Path) -> None:
    outputs: dict[str, Array] = {
        "logits": np.array([[1.5, np.nan]], np.float32),
        "low/precision": np.array([0.1], ml_dtypes.bfloat16),
        "ids": np.array(7, np.int64),
        "none": np.zeros((0, 3), np.float16),
    }
    recordings.write(tmp_path, "m", FEEDS, outputs)
    found = recordings.read(tmp_path, "m", FEEDS)
    assert found is not None and list(found) == list(outputs)
    for name, array in outputs.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        assert found[name].tobytes() == array.tobytes()


def test_outputs_are_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        recordings.write(tmp_path, "m", FEEDS, Ending({"y": np.zeros(1), "z": np.zeros(1)}))
    assert recordings.read(tmp_path, "m", FEEDS) is None and not recordings.has(
        tmp_path, "m", FEEDS
    )
    for value in (1.0, 2.0):
        recordings.write(tmp_path, "m", FEEDS, {"y": np.full(1, value)})
        assert recordings.read(tmp_path, "m", FEEDS) == {"y": np.full(1, value)}


class Ending(dict[str, Array]):
    """Its process ends while the second of two is written."""

    def items(self) -> Any:
        yield from list(super().items())[:1]
        raise KeyboardInterrupt


def test_what_is_known_of_a_model_is_kept_by_name(tmp_path: Path) -> None:
    assert recordings.kept(tmp_path, "m", "sizes", tuple[dict[str, int], ...]) is None
    for sizes in (({"n": 1},), ({"n": 2}, {"n": 3})):
        recordings.keep(tmp_path, "m", "sizes", sizes)
        assert recordings.kept(tmp_path, "m", "sizes", tuple[dict[str, int], ...]) == sizes
    assert recordings.kept(tmp_path, "n", "sizes", tuple[dict[str, int], ...]) is None
    with pytest.raises(StorageError, match="a recorded output is broken"):
        recordings.kept(tmp_path, "m", "sizes", str)


def test_a_broken_recording_is_an_error(tmp_path: Path) -> None:
    recordings.write(tmp_path, "m", FEEDS, {"y": np.zeros(1)})
    (file,) = tmp_path.rglob("output_0.pb")
    file.write_bytes(b"\xff\xff")
    with pytest.raises(StorageError, match="a recorded output is broken"):
        recordings.read(tmp_path, "m", FEEDS)


def test_a_place_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"a file where a folder goes")
    with pytest.raises(StorageError, match="cannot be written"):
        recordings.refuse(tmp_path, "m", "why")
    with pytest.raises(StorageError, match="cannot be written"):
        recordings.write(tmp_path, "m", FEEDS, {"y": np.zeros(1)})


def test_a_folder_without_outputs_is_none_of_these_inputs(tmp_path: Path) -> None:
    """As one that was to be copied out of a cache which had lost them."""
    (tmp_path / "m" / recordings.name_of(FEEDS)).mkdir(parents=True)
    assert not recordings.has(tmp_path, "m", FEEDS)
    assert recordings.read(tmp_path, "m", FEEDS) is None


RIGHT = Boundary(
    node="main_0",
    inputs=(Port(name="a", type="tensor(float)", shape=(1, 4)), Port(name="b"), Port(name="w")),
    outputs=(Port(name="y", type="tensor(float)", shape=(None, 4)),),
)


def file() -> onnx.ModelProto:
    """A file whose one EPContext node is RIGHT."""
    node = helper.make_node(
        "EPContext", ["a", "b", "w"], ["y"], name="main_0", domain="com.microsoft"
    )
    graph = helper.make_graph(
        [node, helper.make_node("Relu", ["y"], ["z"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4]) for name in "ab"],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor("w", TensorProto.FLOAT, [1], [2.0])],
        value_info=[helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
    )
    return helper.make_model(graph)


def swap(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[:] = ["b", "a", "w"]


def rename(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[:] = ["y_1"]
    model.graph.node[1].input[:] = ["y_1"]


def retype(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.elem_type = TensorProto.FLOAT16


def reshape(model: onnx.ModelProto) -> None:
    model.graph.value_info[0].type.tensor_type.shape.dim[1].dim_value = 5


def flatten(model: onnx.ModelProto) -> None:
    del model.graph.input[0].type.tensor_type.shape.dim[0]


def call_otherwise(model: onnx.ModelProto) -> None:
    model.graph.node[0].name = "main_1"


ALTERED: dict[str, tuple[Callable[[onnx.ModelProto], None], list[str]]] = {
    "order": (swap, ["node 'main_0': inputs are b, a, w, not a, b, w"]),
    "a name": (rename, ["node 'main_0': outputs are y_1, not y"]),
    "a type": (retype, ["'a' is tensor(float16), not tensor(float)"]),
    "a size": (reshape, ["'y' has the shape ['n', 5], not [None, 4]"]),
    "a rank": (flatten, ["'a' has the shape [4], not [1, 4]"]),
    "a node": (
        call_otherwise,
        ["no generating session has its node 'main_1'", "it lacks the node 'main_0'"],
    ),
}


def test_a_file_as_it_was_made_differs_in_nothing() -> None:
    assert list(boundary_differences(file(), [RIGHT])) == []


@pytest.mark.parametrize("what", ALTERED)
def test_what_is_altered_is_told(what: str) -> None:
    alter, told = ALTERED[what]
    model = file()
    alter(model)
    assert list(boundary_differences(model, [RIGHT])) == told


def test_values_under_other_names_are_found_by_those_in_the_compiled_graph() -> None:
    model = file()
    model.graph.node[0].input[0] = model.graph.input[0].name = "p_a"
    overrides = helper.make_attribute("io_name_overrides", "p_a=a;b=b;w=w;y=y;")
    model.graph.node[0].attribute.append(overrides)
    assert list(boundary_differences(model, [RIGHT])) == []
    retype(model)
    assert list(boundary_differences(model, [RIGHT])) == ALTERED["a type"][1]
