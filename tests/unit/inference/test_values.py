"""Values, flat outputs, and what a caller feeds, held against inputs and outputs."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.errors import UsageError
from epctx.inference import values
from epctx.inference.values import NodeArg, check_feeds, check_outputs, to_python, to_value

SEQUENCE = "seq(map(int64,tensor(float)))"


def test_a_sequence_of_maps_with_the_same_keys_is_a_matrix() -> None:
    rows = [{7: 0.5, 5: 0.25}, {5: 1.0, 7: 0.125}]
    ((name, array),) = values.flat(["y"], [rows], [SEQUENCE])
    assert name == "y{5, 7}" and isinstance(array, np.ndarray)
    assert array.dtype == np.float32 and array.tolist() == [[0.25, 0.5], [1.0, 0.125]]


def test_other_keys_are_another_output() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3}]
    found = dict(values.flat(["y"], [rows], ["seq(map(string,tensor(int64)))"]))
    assert list(found) == ["y[0]{'a', 'b'}", "y[1]{'a'}"]
    assert [str(np.asarray(each).dtype) for each in found.values()] == ["int64", "int64"]


def test_values_of_maps_keep_their_type() -> None:
    for kind, one, dtype in (
        ("map(int64,tensor(double))", 0.1, np.dtype(np.float64)),
        ("map(int64, double)", 0.1, np.dtype(np.float64)),
        ("map(int64,tensor(float))", 0.1, np.dtype(np.float32)),
        ("map(int64,tensor(string))", "word", np.dtype(object)),
    ):
        ((name, array),) = values.flat(["y"], [{1: one}], [kind])
        assert name == "y{1}" and isinstance(array, np.ndarray)
        assert array.dtype == dtype and array.shape == (1,)


def test_of_many_keys_some_are_named_and_all_count() -> None:
    many = dict.fromkeys(range(1000), 0.0)
    other = {**many, 1000: 0.0}
    del other[999]
    ((one, _),) = values.flat(["y"], [many], ["map(int64,tensor(float))"])
    ((two, _),) = values.flat(["y"], [other], ["map(int64,tensor(float))"])
    assert one.startswith("y{0, 1, 2, 3, 4, 5, 6, 7, ... 1000 keys, ") and one != two


def test_sequences_and_tensors() -> None:
    x = np.ones(2, np.float32)
    kinds = ["tensor(float)", "seq(tensor(float))", "seq(tensor(float))"]
    found = dict(values.flat(["x", "s", "none"], [x, [x, x], []], kinds))
    assert list(found) == ["x", "s[0]", "s[1]", "none[]"]
    assert np.asarray(found["none[]"]).size == 0


def test_what_is_told_of_an_output_is_known_by_its_name() -> None:
    assert values.suffix("y", "y") == "" and values.suffix("y[0]{'a'}", "y") == "[0]{'a'}"
    assert values.suffix("y{'[y'}", "y") == "{'[y'}"
    assert values.suffix("yy[0]", "y") is None and values.suffix("x[0]", "y") is None


TYPES = {
    "tensor(float)": helper.make_tensor_type_proto(TensorProto.FLOAT, [1, "n", None]),
    "tensor(double)": helper.make_tensor_type_proto(TensorProto.DOUBLE, []),
    "tensor(int64)": helper.make_tensor_type_proto(TensorProto.INT64, None),
    "tensor(bfloat16)": helper.make_tensor_type_proto(TensorProto.BFLOAT16, [2]),
    "tensor(string)": helper.make_tensor_type_proto(TensorProto.STRING, [2]),
    "seq(tensor(float))": helper.make_sequence_type_proto(
        helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    ),
    "optional(seq(tensor(int32)))": helper.make_optional_type_proto(
        helper.make_sequence_type_proto(helper.make_tensor_type_proto(TensorProto.INT32, None))
    ),
    "map(int64,tensor(float))": helper.make_map_type_proto(
        TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    ),
}


@pytest.mark.parametrize("text", TYPES)
def test_a_type_is_told_as_onnxruntime_does_and_read_back(text: str) -> None:
    info = onnx.ValueInfoProto(name="x", type=TYPES[text])
    arg = NodeArg.of(info)
    assert arg.type == text
    assert NodeArg.of(arg.value_info()).type == text


def test_onnxruntime_says_the_same_of_shapes() -> None:
    info = onnx.ValueInfoProto(name="x", type=TYPES["tensor(float)"])
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [info], [onnx.ValueInfoProto(name="y")]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (theirs,) = session.get_inputs()
    assert NodeArg.of(info) == NodeArg.of_session(theirs)


def value(array: object) -> object:
    return to_value(array)


X = NodeArg(name="x", type="tensor(float)", shape=[2, "n"], ranked=True)


@pytest.mark.parametrize(
    ("fed", "why"),
    [
        (np.zeros((2, 5), np.float32), None),
        (np.zeros((3, 5), np.float32), r"its shape is \[3, 5\], not \[2, 'n'\]"),
        (np.zeros(2, np.float32), "its shape"),
        (np.zeros((2, 5)), r"it is tensor\(double\), not tensor\(float\)"),
    ],
)
def test_what_does_not_fit_is_told_in_words(fed: object, why: str | None) -> None:
    feeds = {"x": value(fed)}
    if why is None:
        check_feeds([X], (), feeds)
    else:
        with pytest.raises(UsageError, match=why):
            check_feeds([X], (), feeds)


def test_missing_and_unknown_names_are_told() -> None:
    with pytest.raises(UsageError, match="inputs are missing: x"):
        check_feeds([X], (), {})
    check_feeds([X], {"x"}, {})
    with pytest.raises(UsageError, match='did you mean "x"'):
        check_feeds([X], (), {"X": value(np.zeros((2, 1), np.float32))})
    with pytest.raises(UsageError, match="no output 'z'"):
        check_outputs([X], ["x", "z"])
    assert check_outputs([X], None) == check_outputs([X], []) == ["x"]


@pytest.mark.parametrize(
    "array",
    [
        np.float32(3),
        np.zeros((), np.int64),
        np.zeros((2, 3), np.float16),
        np.zeros((4, 4), np.float32).T[::2],
        np.ones(3, ">f4"),
        np.array([True, False]),
        np.arange(3, dtype=np.uint8),
        np.ones((2, 2), ml_dtypes.bfloat16),
        np.ones(3, ml_dtypes.float8_e4m3fn),
        np.array(["a", "b"]),
        np.zeros((0, 3), np.float32),
    ],
    ids=lambda a: f"{a.dtype}{a.shape}",
)
def test_values_go_in_and_come_out(array: np.ndarray) -> None:
    back = to_python(to_value(array))
    assert back.shape == array.shape and back.dtype == array.dtype.newbyteorder("=")
    assert (back == array).all()


def test_an_array_is_not_copied_on_its_way_in_and_is_on_its_way_out() -> None:
    array = np.ones(1000, np.float32)
    made = to_value(array)
    assert made.data_ptr() == array.ctypes.data
    assert not np.shares_memory(to_python(made), array)


def test_sequences_and_nothing_pass_as_they_are() -> None:
    parts = [np.ones(1), np.ones(2)]
    assert to_value(parts) is parts and to_value(None) is None
    assert to_python(parts) is parts
