"""What a model is fed: names, types, shapes, and the range that its graph implies."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from epctx.graph.inputs import specs


def model(
    inputs: list[onnx.ValueInfoProto],
    nodes: list[onnx.NodeProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", inputs, [], list(initializers))
    return helper.make_model(graph)


def test_specs_leave_out_inputs_that_are_initializers() -> None:
    weight = helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0])
    found = specs(
        model(
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
        model(
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
    found = specs(model(infos, nodes, [table("words", 100), table("small", 7)]))
    ranges = {s.name: s.hint and s.hint[:2] for s in found}
    assert ranges == {"ids": (0, 6), "types": (0, 6), "mask": (0, 1)}
