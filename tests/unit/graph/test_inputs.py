"""Inputs of a model and their ranges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper

from epctx.graph import inputs
from epctx.graph.inputs import Hint, Range, specs
from epctx.inference import feeds
from tests.kit import onnx_text

INT64, INT32, FLOAT = TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT
Inputs = list[tuple[str, int, list[int]]]


def model(inputs: Inputs, *nodes: onnx.NodeProto, rows: int = 9) -> onnx.ModelProto:
    """The last node's output is the model's; `t` is a table of these rows, `s` a shape."""
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(*each) for each in inputs],
        [onnx.ValueInfoProto(name=nodes[-1].output[0])],
        [
            helper.make_tensor("t", FLOAT, [rows, 2], [0.5] * rows * 2),
            helper.make_tensor("s", INT64, [1], [-1]),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def ranges(made: onnx.ModelProto) -> dict[str, Range]:
    return {name: hint[:2] for name, hint in inputs.range_hints(made).items()}


def node(op: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), ["y"], **attributes)


INDEX: Inputs = [("i", INT64, [4])]
CASES: dict[str, tuple[onnx.ModelProto, dict[str, Range]]] = {
    "an index": (model(INDEX, node("Gather", "t", "i")), {"i": (0, 8)}),
    "of the last axis": (model(INDEX, node("Gather", "t", "i", axis=-1)), {"i": (0, 1)}),
    "an index by another way": (
        model(
            [("i", INT32, [2, 2])],
            helper.make_node("Reshape", ["i", "s"], ["flat"]),
            helper.make_node("Cast", ["flat"], ["wide"], to=INT64),
            node("Gather", "t", "wide"),
        ),
        {"i": (0, 8)},
    ),
    "an index of what is fed": (
        model([("d", FLOAT, [5, 2]), ("i", INT64, [4])], node("Gather", "d", "i")),
        {"i": (0, 4)},
    ),
    "an index of a constant": (
        model(
            INDEX,
            helper.make_node(
                "Constant", [], ["c"], value=helper.make_tensor("c", FLOAT, [3], [1, 2, 3])
            ),
            node("Gather", "c", "i"),
        ),
        {"i": (0, 2)},
    ),
    "elements": (
        model([("i", INT64, [4, 2])], node("GatherElements", "t", "i")),
        {"i": (0, 8)},
    ),
    "tuples": (model([("i", INT64, [4, 2])], node("GatherND", "t", "i")), {"i": (0, 1)}),
    "scattered": (
        model([("i", INT64, [3, 1]), ("u", FLOAT, [3, 2])], node("ScatterND", "t", "i", "u")),
        {"i": (0, 1)},
    ),
    "a divisor": (
        model([("a", INT64, [4]), ("b", INT64, [4])], node("Div", "a", "b")),
        {"a": (0, 7), "b": (1, 4)},
    ),
    "a step": (
        model(
            [("a", INT64, []), ("b", INT64, []), ("c", INT64, [])], node("Range", "a", "b", "c")
        ),
        {"c": (1, 1)},
    ),
    "a count": (
        model([("x", FLOAT, [9]), ("k", INT64, [1])],
              helper.make_node("TopK", ["x", "k"], ["v", "n"]),
              node("Identity", "v")),
        {"k": (1, 1)},
    ),
    "a logarithm": (model([("x", FLOAT, [9])], node("Log", "x")), {"x": (2**-10, 4)}),
    "two consumers": (
        model(
            [("i", INT64, [4])],
            helper.make_node("Gather", ["t", "i"], ["a"]),
            node("Gather", "t", "i", axis=1),
        ),
        {"i": (0, 1)},
    ),
    "a mask": (
        model(
            [("m", TensorProto.BOOL, [2]), ("x", FLOAT, [2])], node("Where", "m", "x", "x")
        ),
        {},
    ),
    "a logarithm of an integer": (
        model([("i", INT32, [9])], helper.make_node("Cast", ["i"], ["f"], to=FLOAT),
              node("Log", "f")),
        {"i": (2**-10, 4)},
    ),
    "a float divisor": (
        model([("a", FLOAT, [4]), ("b", FLOAT, [4])], node("Div", "a", "b")),
        {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_the_model_runs_on_what_is_generated(name: str) -> None:
    made, expected = CASES[name]
    assert ranges(made) == expected
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for index in range(5):
        given = feeds.generate(specs(made), seed=0, index=index)
        (out,) = session.run(None, given)
        assert np.isfinite(np.asarray(out, np.float64)).all()


QUANTIZED: dict[str, tuple[str, Range | None]] = {
    "uint8 by default": ("q = QuantizeLinear(x, s)", (0, 127.5)),
    "int8": ("q = QuantizeLinear(x, s, i8)", (-59, 68.5)),
    "uint16": ("q = QuantizeLinear(x, s, u16)", (-16384, 16383.5)),
    "int16 by its attribute": ("q = QuantizeLinear <output_dtype=5> (x, s)", (-16384, 16383.5)),
    "int4": ("q = QuantizeLinear(x, s, i4)", (-4.5, 3)),
    "a constant node": (
        "c = Constant <value = float {0.5}> () q = QuantizeLinear(x, c, i8)", (-59, 68.5)
    ),
    "behind what moves values": (
        "h = Cast <to = 10> (x) f = Cast <to = 1> (h) t = Transpose(f) r = Reshape(t, all)"
        " q = QuantizeLinear(r, s, i8)", (-59, 68.5)
    ),
    "ONNX Runtime's own op": ("q = com.microsoft.QuantizeLinear(x, s, i8)", (-59, 68.5)),
    "what else reads it is narrower": ("l = Log(x) q = QuantizeLinear(x, s, i8)", (2**-10, 4)),
    "a scale for each channel": ("q = QuantizeLinear <axis=0> (x, s2)", None),
    "a scale that is fed": ("q = QuantizeLinear(x, fed)", None),
    "a zero point that is fed": ("q = QuantizeLinear(x, s, z)", None),
    "float8": ("q = QuantizeLinear <output_dtype=17> (x, s)", None),
    "a scale that is none": ("q = QuantizeLinear(x, none)", None),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "expected"), QUANTIZED.values(), ids=QUANTIZED.keys())
def test_what_is_quantized_first_fills_its_range(nodes: str, expected: Range | None) -> None:
    made = onnx_text.proto(
        "g (float[2,2] x, float fed, int8 z) => (int8[2,2] q) <float s = {0.5}, float none = {0},"
        " float[2] s2 = {0.5, 0.5}, int8 i8 = {-10}, uint16 u16 = {32768}, int4 i4 = {1},"
        f" int64[2] all = {{2, 2}}> {{ {nodes} }}",
        opsets='"" : 21, "com.microsoft" : 1',
    )
    found = ranges(made).get("x")
    assert found == (None if expected is None else pytest.approx(expected))
    for tensor in made.graph.initializer:
        tensor.data_location = TensorProto.EXTERNAL
    if expected is not None and "Constant" not in nodes and "Log" not in nodes:
        assert ranges(made) == {}, "what is in other files is not read"


def test_integers_that_are_cast_and_quantized_keep_their_own_range() -> None:
    made = onnx_text.proto(
        "g (uint8[2] x) => (uint8[2] q) <float s = {0.01}> { f = Cast <to = 1> (x)"
        " q = QuantizeLinear(f, s) }"
    )
    assert ranges(made) == {}


def test_what_contradicts_itself_is_not_narrowed() -> None:
    made = model(
        [("x", FLOAT, [2])],
        helper.make_node("Asin", ["x"], ["a"]),
        helper.make_node("Acosh", ["x"], ["b"]),
        node("Add", "a", "b"),
    )
    assert ranges(made) == {"x": (1, 1)}
    both = model([("i", INT64, [1])], node("Gather", "t", "i"), rows=1)
    both.graph.node.append(helper.make_node("Div", ["i", "i"], ["z"]))
    assert ranges(both) == {"i": (0, 0)}


def test_a_graph_that_leaves_everything_open_says_nothing() -> None:
    made = model([("i", INT64, [1])], node("Gather", "nowhere", "i"))
    made.graph.node.append(helper.make_node("GatherND", ["i"], ["z"]))
    made.graph.node.append(helper.make_node("Identity", [], ["e"]))
    assert ranges(made) == {}


PLAUSIBLE: dict[str, tuple[str, Hint | None]] = {
    "pixels, divided": ("y = Div(x, c255)", Hint(0, 255, "by its first op, Div")),
    "pixels, multiplied": ("y = Mul(x, inverse)", Hint(0, 255, "by its first op, Mul")),
    "pixels, less their means": ("y = Sub(x, means)", Hint(0, 255, "by its first op, Sub")),
    "shares, less their means": ("y = Sub(x, half)", Hint(0, 1, "by its first op, Sub")),
    "behind what moves values": (
        "t = Transpose(x) y = Div(t, c255)", Hint(0, 255, "by its first op, Div")
    ),
    "normalized": (
        "y = BatchNormalization(x, one, one, mean, variance)",
        Hint(80, 160, "by its first op, BatchNormalization"),
    ),
    "a scale that is none of pixels": ("y = Div(x, eight)", None),
    "a number far beyond pixels": ("y = Div(x, large)", None),
    "anything": ("y = Relu(x)", None),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "expected"), PLAUSIBLE.values(), ids=PLAUSIBLE.keys())
def test_floats_are_what_is_done_with_them_first(nodes: str, expected: Hint | None) -> None:
    made = onnx_text.proto(
        "g (float[1,1,2,2] x) => (float[1,1,2,2] y) <float c255 = {255}, float inverse = {0.00392},"
        " float[1,1,1,2] means = {103.9, 116.8}, float half = {0.5}, float eight = {8},"
        " float large = {10000}, float[1] one = {1}, float[1] mean = {120},"
        f" float[1] variance = {{400}}> {{ {nodes} }}"
    )
    assert inputs.range_hints(made).get("x") == expected


@pytest.mark.parametrize(
    ("pixels", "expected"),
    [("NominalRange_0_255", (0, 255)), ("Normalized_1_1", (-1, 1)), ("else", None)],
)
def test_what_an_exporter_says_of_pixels(pixels: str, expected: Range | None) -> None:
    made = onnx_text.proto("g (float[1,3,2,2] x) => (float[1,3,2,2] y) { y = Relu(x) }")
    made.metadata_props.add(key="Image.NominalPixelRange", value=pixels)
    assert ranges(made).get("x") == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(int64 x) => (bool y) <int64 c = {16000}> { y = Equal(x, c) }", (16000, 16000)),
        ("(int32[2] x) => (bool[2] y) <int32[2] c = {0, 256}> { y = Equal(x, c) }", (0, 256)),
        ("(int64[2] x) => (bool[2] y) <int64 c = {1}> { y = Equal(x, c) }", None),
        ("(int64[2] x) => (int64[2] y) <int64 c = {3}> { y = Mul(x, c) }", (0, 7)),
        (
            "(int64[2] x) => (float[2] y) <float c = {3}> { f = Cast <to = 1> (x) y = Mul(f, c) }",
            (0, 255),
        ),
        (
            "(int64[2] x) => (float[2] y) <float c = {1}> { f = Cast <to = 1> (x) y = Sub(c, f) }",
            None,
        ),
        (
            "(int64[2] x) => (float[2] y) <float[2] c = {1, 1}> { f = Cast <to = 1> (x)"
            " y = Mul(f, c) }",
            None,
        ),
        (
            "(int64[2] x) => (float[2] y) <float c = {-10000}> { f = Cast <to = 1> (x)"
            " y = Mul(f, c) }",
            None,
        ),
        ("(uint8[2] x) => (uint8[2] y) <uint8 c = {3}> { y = Add(x, c) }", None),
        ("(int64[2] x) => (int64[2] y) { y = Identity(x) }", None),
    ],
)
def test_integers_are_what_they_are_compared_with_or_count(
    text: str, expected: Range | None
) -> None:
    assert ranges(onnx_text.proto(f"g {text}")).get("x") == expected


def test_names_tell_where_nothing_else_does() -> None:
    made = onnx_text.proto(
        "g (int64[2] attention_mask, float[2] audio, int64[2] n, int64 sr, float[2] mel) =>"
        " (int64[2] y, float[2] z, int64 r, float[2] m)"
        " { y = Mul(attention_mask, n) z = Abs(audio) r = Neg(sr) m = Abs(mel) }"
    )
    assert inputs.range_hints(made) == {
        "sr": Hint(16000, 16000, "a rate, by its name"),
        "mel": Hint(-8, 2, "log-mel features, by its name"),
        "attention_mask": Hint(0, 1, "a mask, by its name"),
        "audio": Hint(-1, 1, "sound, by its name"),
        "n": Hint(0, 7, "it counts, for its Mul"),
    }


def test_long_names_cost_no_time() -> None:
    """A pattern that reads each beginning to the end would take hours."""
    name = "sampl" * 400_000
    made = onnx_text.proto(f"g (float[2] {name}) => (float[2] y) {{ y = Abs({name}) }}")
    assert inputs.range_hints(made) == {}
    info = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["-" * 1001, "-" * 1000])
    assert inputs.spec(info).shape == (None, "-" * 1000)


def single_input(
    inputs: list[onnx.ValueInfoProto],
    nodes: list[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [], list(initializers))
    return helper.make_model(graph)


def test_specs_leave_out_inputs_that_are_initializers() -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    found = specs(
        single_input(
            [
                helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [2, "n", None]),
                helper.make_tensor_value_info("w", TensorProto.FLOAT, [1]),
            ],
            [],
            [weight],
        )
    )
    assert [(s.name, s.kind, s.shape) for s in found] == [("x", "bfloat16", (2, "n", None))]
    assert str(found[0]) == "bfloat16[2, n, ?]"


def test_what_cannot_be_generated_says_why() -> None:
    tensor = helper.make_tensor_type_proto(TensorProto.FLOAT, [1])
    shapeless = helper.make_tensor_type_proto(TensorProto.FLOAT, None)
    found = specs(
        single_input(
            [
                helper.make_tensor_value_info("words", TensorProto.STRING, [1]),
                helper.make_value_info("many", helper.make_sequence_type_proto(tensor)),
                helper.make_value_info("maybe", helper.make_optional_type_proto(tensor)),
                helper.make_tensor_value_info("nibbles", TensorProto.INT4, [2]),
                helper.make_tensor_value_info("n", TensorProto.FLOAT, ["batch"]),
                helper.make_tensor_value_info("m", TensorProto.FLOAT, [None]),
                helper.make_value_info("s", shapeless),
                helper.make_tensor_value_info("z", TensorProto.COMPLEX64, [1]),
            ],
            [],
        )
    )
    assert [s.problem for s in found] == [
        "input 'words' is of type string, for which no values are generated",
        "input 'many' is of type sequence, for which no values are generated",
        "input 'maybe' is of type optional, for which no values are generated",
        "input 'nibbles' is of type int4, for which no values are generated",
        "input 'n' has a dimension 'batch' of unknown size",
        "input 'm' has a dimension without a name of unknown size",
        "input 's' has a dimension without a name of unknown size",
        "input 'z' is of type complex64, for which no values are generated",
    ]


def test_token_ids_reach_the_whole_embedding_table() -> None:
    def table(name: str, rows: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.FLOAT, [rows, 2], [0.0] * rows * 2)

    infos = [
        helper.make_tensor_value_info(name, TensorProto.INT32, [1, 3])
        for name in ("ids", "types", "mask")
    ]
    nodes = [
        helper.make_node("Cast", ["ids"], ["ids64"], to=TensorProto.INT64),
        helper.make_node("Gather", ["words", "ids64"], ["a"]),
        helper.make_node("Gather", ["small", "ids"], ["b"], axis=-2),
        helper.make_node("Gather", ["small", "types"], ["c"]),
        helper.make_node("Gather", ["a", "mask"], ["d"]),
        helper.make_node("Gather", ["small", "types"], ["e"], axis=7),
    ]
    found = specs(single_input(infos, nodes, [table("words", 100), table("small", 7)]))
    ranges = {s.name: s.hint and s.hint[:2] for s in found}
    assert ranges == {"ids": (0, 6), "types": (0, 6), "mask": (0, 1)}
