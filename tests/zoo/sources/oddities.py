"""Legal oddities, each the smallest model of its kind: counted apart from what tools write."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

from tests.kit import oddities
from tests.zoo.recipes import Recipe

_HEAD = '<ir_version: 10, opset_import: ["" : 21, "com.microsoft" : 1, "ai.onnx.ml" : 3]>'

TEXTS: Mapping[str, str] = {
    "if_without_inputs": """
        g (bool c) => (float[2] y) {
            y = If (c) <then_branch = a () => (float[2] p) { p = Constant
                <value_floats = [1.0, 2.0]> () },
                        else_branch = b () => (float[2] q) { q =
                            Constant <value_floats = [3.0, 4.0]> () }>
        }""",
    "if_captures": """
        g (bool c, float[2] x) => (float[2] y) {
            z = Relu (x)
            y = If (c) <then_branch = a () => (float[2] p) { p = Add (z, x) },
                        else_branch = b () => (float[2] q) { q = Sub (z, x) }>
        }""",
    "if_equal_names_in_branches": """
        g (bool c, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = a () => (float[2] p) { t = Abs (x) p = Neg (t) },
                        else_branch = b () => (float[2] p) { t = Exp (x) p = Neg (t) }>
        }""",
    "if_constant_condition": """
        g (float[2] x) => (float[2] y) {
            c = Constant <value = bool {1}> ()
            y = If (c) <then_branch = a () => (float[2] p) { p = Neg (x) },
                        else_branch = b () => (float[2] q) { q = Identity (x) }>
        }""",
    "if_of_other_shapes": """
        g (bool c, float[4] x) => (float[N] y) {
            y = If (c) <then_branch = a () => (float[4] p) { p = Neg (x) },
                        else_branch = b () => (float[2] q) {
                            s = Constant <value_ints = [0]> () e = Constant <value_ints = [2]> ()
                            q = Slice (x, s, e) }>
        }""",
    "if_in_if": """
        g (bool c, bool d, float[2] x) => (float[2] y) {
            y = If (c) <then_branch = a () => (float[2] p) {
                    p = If (d) <then_branch = u () => (float[2] v) { v = Abs (x) },
                                else_branch = w () => (float[2] k) { k = Neg (x) }> },
                        else_branch = b () => (float[2] q) { q = Exp (x) }>
        }""",
    "loop_carries_and_collects": """
        g (float[2] x) => (float[2] y, float[N, 2] all) {
            n = Constant <value_int = 3> ()
            c = Constant <value = bool {1}> ()
            y, all = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) =>
                (bool on, float[2] w, float[2] s) {
                on = Identity (go) w = Add (v, v) s = Neg (w) }>
        }""",
    "loop_runs_from_input": """
        g (int64 n, float[2] x) => (float[2] y) {
            c = Constant <value = bool {1}> ()
            y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
                on = Identity (go) w = Add (v, x) }>
        }""",
    "loop_never_runs": """
        g (float[2] x) => (float[2] y) {
            n = Constant <value_int = 0> () c = Constant <value = bool {1}> ()
            y = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
                on = Identity (go) w = Exp (v) }>
        }""",
    "scan_sums": """
        g (float[2] start, float[5, 2] rows) => (float[2] last, float[5, 2] sums) {
            last, sums = Scan (start, rows) <num_scan_inputs = 1, body = b (float[2]
                s, float[2] r) => (float[2] t, float[2] o) {
                t = Add (s, r) o = Identity (t) }>
        }""",
    "scan_backwards": """
        g (float[2] start, float[2, 5] rows) => (float[2] last, float[2, 5] sums) {
            last, sums = Scan (start, rows) <num_scan_inputs = 1, scan_input_axes = [1],
                scan_output_axes = [1],
                scan_input_directions = [1], body = b (float[2] s, float[2] r)
                    => (float[2] t, float[2] o) {
                t = Add (s, r) o = Mul (t, r) }>
        }""",
    "body_shadows_nothing_but_looks_so": """
        g (float[2] x) => (float[2] y) {
            n = Constant <value_int = 2> () c = Constant <value = bool {1}> ()
            y0 = Loop (n, c, x) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
                on = Identity (go) z = Neg (v) w = Add (z, x) }>
            y = Loop (n, c, y0) <body = b (int64 i, bool go, float[2] v) => (bool on, float[2] w) {
                on = Identity (go) z = Abs (v) w = Sub (z, x) }>
        }""",
    "optional_inputs_left_out": """
        g (float[3, 4] x) => (float[3, 4] y, float[2, 4] r) {
            high = Constant <value_float = 0.5> ()
            y = Clip (x, , high)
            s = Constant <value = float[3] {1.0, 0.6, 1.0}> ()
            sizes = Constant <value_ints = [2, 4]> ()
            r = Resize (x, , , sizes)
        }""",
    "variadic_of_one": """
        g (float[2] x) => (float[2] y) { a = Sum (x) b = Max (a) c = Mean (b) y = Concat
            <axis = 0> (c) }""",
    "input_is_output": "g (float[2] x, float[2] z) => (float[2] x, float[2] y) { y = Neg (z) }",
    "no_node": "g (float[2] x) => (float[2] x) { }",
    "input_without_consumer": "g (float[2] x, float[3] unused) => (float[2] y) { y = Neg (x) }",
    "no_input": "g () => (float[2] y) { a = Constant <value_floats = [1.0, 2.0]> () y = Exp (a) }",
    "value_used_twice": "g (float[2] x) => (float[2] y) { y = Mul (x, x) }",
    "identity_before_output": """
        g (float[2, 3] x, float[2, 4] w) => (float[3, 4] y, float[3, 2] t) { a =
            Transpose <perm = [1, 0]> (x) t = Identity (a) y = MatMul (a, w) }""",
    "empty_tensor": "g (float[0, 3] x, float[3, 2] w) => (float[0, 2] y) { y = MatMul (x, w) }",
    "scalar": "g (float x) => (float y) { y = Sqrt (x) }",
    "symbolic": "g (float[batch, length] x) => (float[batch, length] y) { y = Softmax (x) }",
    "symbolic_sum": """
        g (float[B, past, 4] kept, float[B, now, 4] x) => (float[B, total, 4] y) { y =
            Concat <axis = 1> (kept, x) }""",
    "unnamed_dimensions": "g (float[?, ?] x) => (float[?, ?] y) { y = Relu (x) }",
    "multiple_of_eight": """
        g (float[N] x) => (float[M, 8] y) { s = Constant <value_ints = [-1, 8]> () y =
            Reshape (x, s) }""",
    "unknown_rank_inside": """
        g (float[2, 3] x, int64[2] s) => (float[M, K] y) { r = Reshape (x, s) a = Exp
            (r) y = Neg (a) }""",
    "strings": """
        g (string[3] x) => (string[3] y) { y = StringNormalizer <case_change_action =
            "UPPER"> (x) }""",
    "string_concat": "g (string[2] x, string[2] z) => (string[2] y) { y = StringConcat (x, z) }",
    "booleans": "g (bool[4] x, bool[4] z) => (bool[4] y) { a = And (x, z) y = Not (a) }",
    "float16": "g (float16[4] x) => (float16[4] y) { a = Exp (x) y = Add (a, x) }",
    "bfloat16": """
        g (float[4] x) => (float[4] y) { a = Cast <to = 16> (x) b = Mul (a, a) y = Cast
            <to = 1> (b) }""",
    "float64": "g (double[4] x) => (double[4] y) { a = Exp (x) y = Add (a, x) }",
    "int8": "g (int8[4] x) => (int8[4] y) { y = Abs (x) }",
    "uint16": "g (uint16[4] x) => (int64[4] y) { y = Cast <to = 7> (x) }",
    "sequence_inside": """
        g (float[2] x, float[3] z) => (float[5] y) { s = SequenceConstruct (x, z) y =
            ConcatFromSequence <axis = 0> (s) }""",
    "sequence_output": """
        g (float[4, 2] x) => (seq(float[2, 2]) y) { n = Constant <value_int = 2> () y =
            SplitToSequence (x, n) }""",
    "sequence_input": """
        g (seq(float[2, 3]) s) => (float[2, 3] y) { i = Constant <value_int = 0> () a =
            SequenceAt (s, i) y = Neg (a) }""",
    "optional_inside": """
        g (float[2] x) => (float[2] y) { o = Optional (x) y = OptionalGetElement (o) }""",
    "contrib_gelu": "g (float[2, 4] x) => (float[2, 4] y) { y = com.microsoft.Gelu (x) }",
    "contrib_fused_matmul": """
        g (float[2, 4] x, float[2, 4] w) => (float[4, 4] y) { y =
            com.microsoft.FusedMatMul <transA = 1> (x, w) }""",
    "contrib_quick_gelu_named": """
        g (float[2, 4] x) => (float[2, 4] y) { y = com.microsoft.QuickGelu <alpha = 1.7>
            (x) }""",
    "dropout_inference": """
        g (float[2, 4] x) => (float[2, 4] y, bool[2, 4] m) { y, m = Dropout (x) }""",
    "constant_of_shape": """
        g (int64[2] s) => (float[M, N] y) { y = ConstantOfShape <value = float[1] {2.5}>
            (s) }""",
    "non_zero": "g (float[2, 3] x) => (int64[2, n] y) { y = NonZero (x) }",
    "unique": "g (float[6] x) => (float[n] y, int64[n] i) { y, i = Unique (x) }",
    "einsum": """
        g (float[2, 3] x, float[3, 4] w) => (float[2, 4] y) { y = Einsum <equation =
            "ij,jk->ik"> (x, w) }""",
    "negative_slice": """
        g (float[5] x) => (float[N] y) { s = Constant <value_ints = [-1]> () e =
            Constant <value_ints = [-9223372036854775807]> ()
            a = Constant <value_ints = [0]> () k = Constant <value_ints = [-1]> () y
                = Slice (x, s, e, a, k) }""",
    "layer_norm_of_default_domain": """
        g (float[2, 4] x, float[4] s) => (float[2, 4] y) { y = LayerNormalization (x, s)
            }""",
}


def _text(text: str, folder: Path) -> None:
    onnx.save(parser.parse_model(_HEAD + text), folder / "model.onnx")


def _value(name: str, kind: int = TensorProto.FLOAT, shape: Any = (2,)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _model(nodes: list[onnx.NodeProto], **given: Any) -> onnx.ModelProto:
    """A model of one input `x` and one output `y`, both float[2], unless said otherwise."""
    settings = {"inputs": [_value("x")], "outputs": [_value("y")], "initializer": []} | given
    opsets = settings.pop("opset_imports", [helper.make_opsetid("", 21)])
    functions = settings.pop("functions", [])
    graph = helper.make_graph(nodes, "g", **settings)
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10)


def _wrong_value_info() -> onnx.ModelProto:
    nodes = [helper.make_node("Neg", ["x"], ["a"]), helper.make_node("Abs", ["a"], ["y"])]
    return _model(nodes, value_info=[_value("a", shape=(7,))])


def _wrong_output_shape() -> onnx.ModelProto:
    return _model([helper.make_node("Neg", ["x"], ["y"])], outputs=[_value("y", shape=(7,))])


def _minus_one() -> onnx.ModelProto:
    node = helper.make_node("Neg", ["x"], ["y"])
    return _model([node], inputs=[_value("x", shape=(-1, 3))], outputs=[_value("y", shape=(-1, 3))])


def _initializer_is_input() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    return _model([node], inputs=[_value("x"), _value("w")], initializer=[weight])


def _initializer_is_output() -> onnx.ModelProto:
    weight = numpy_helper.from_array(np.array([2, 3], np.float32), "w")
    node = helper.make_node("Mul", ["x", "w"], ["y"])
    return _model([node], outputs=[_value("y"), _value("w")], initializer=[weight])


def _sparse_initializer() -> onnx.ModelProto:
    values = numpy_helper.from_array(np.array([5], np.float32), "w")
    places = numpy_helper.from_array(np.array([1], np.int64), "")
    made = _model([helper.make_node("Add", ["x", "w"], ["y"])])
    made.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [2]))
    return made


def _big_initializer_in_body() -> onnx.ModelProto:
    count = 256
    weight = numpy_helper.from_array(np.arange(count, dtype=np.float32), "k")
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "k"], ["w"])],
        "body",
        [],
        [_value("w", shape=(count,))],
        [weight],
    )
    other = helper.make_graph(
        [helper.make_node("Neg", ["x"], ["u"])], "other", [], [_value("u", shape=(count,))]
    )
    return _model(
        [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)],
        inputs=[_value("c", TensorProto.BOOL, ()), _value("x", shape=(count,))],
        outputs=[_value("y", shape=(count,))],
    )


def _function() -> onnx.ModelProto:
    made = helper.make_function(
        "own",
        "Twice",
        ["a"],
        ["b"],
        [helper.make_node("Add", ["a", "a"], ["b"])],
        [helper.make_opsetid("", 21)],
    )
    nodes = [
        helper.make_node("Twice", ["x"], ["m"], domain="own"),
        helper.make_node("Twice", ["m"], ["y"], domain="own"),
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return _model(nodes, functions=[made], opset_imports=opsets)


def _names(name: str) -> onnx.ModelProto:
    nodes = [
        helper.make_node("Neg", ["x"], [name], name=name),
        helper.make_node("Abs", [name], ["y"]),
    ]
    return _model(nodes)


def _loop_without_trip_count() -> onnx.ModelProto:
    constants = {"one": 1.0, "high": 100.0}
    weights = [
        numpy_helper.from_array(np.array([each], np.float32), n) for n, each in constants.items()
    ]
    body = helper.make_graph(
        [
            helper.make_node("Add", ["v", "one"], ["w"]),
            helper.make_node("Less", ["w", "high"], ["below"]),
            helper.make_node("Squeeze", ["below"], ["on"]),
        ],
        "body",
        [
            _value("i", TensorProto.INT64, ()),
            _value("go", TensorProto.BOOL, ()),
            _value("v", shape=(1,)),
        ],
        [_value("on", TensorProto.BOOL, ()), _value("w", shape=(1,))],
    )
    condition = numpy_helper.from_array(np.array(True), "c")
    return _model(
        [helper.make_node("Loop", ["", "c", "x"], ["y"], body=body)],
        inputs=[_value("x", shape=(1,))],
        outputs=[_value("y", shape=(1,))],
        initializer=[*weights, condition],
    )


def _outputs_left_out() -> onnx.ModelProto:
    weights = [
        numpy_helper.from_array(np.full((1, 8, size), 0.25, np.float32), name)
        for name, size in (("w", 4), ("r", 2))
    ]
    return _model(
        [helper.make_node("LSTM", ["x", "w", "r"], ["", "y"], hidden_size=2)],
        inputs=[_value("x", shape=(2, 3, 4))],
        outputs=[_value("y", shape=(1, 3, 2))],
        initializer=weights,
    )


def _optional_output() -> onnx.ModelProto:
    kind = helper.make_optional_type_proto(helper.make_tensor_type_proto(TensorProto.FLOAT, [2]))
    output = helper.make_value_info("y", kind)
    return _model([helper.make_node("Optional", ["x"], ["y"])], outputs=[output])


def _zip_map() -> onnx.ModelProto:
    kind = helper.make_sequence_type_proto(
        helper.make_map_type_proto(
            TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, [])
        )
    )
    node = helper.make_node("ZipMap", ["s"], ["y"], domain="ai.onnx.ml", classlabels_int64s=[3, 4])
    nodes = [helper.make_node("Softmax", ["x"], ["s"]), node]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 3)]
    return _model(
        nodes,
        inputs=[_value("x", shape=(1, 2))],
        outputs=[helper.make_value_info("y", kind)],
        opset_imports=opsets,
    )


def _old_opset(version: int) -> onnx.ModelProto:
    """Ops whose attributes became inputs later."""
    nodes = [
        helper.make_node("Unsqueeze", ["x"], ["a"], axes=[0]),
        helper.make_node("Slice", ["a"], ["b"], axes=[1], starts=[0], ends=[2]),
        helper.make_node("Clip", ["b"], ["c"], min=-1.0, max=1.0),
        helper.make_node("Squeeze", ["c"], ["y"], axes=[0]),
    ]
    return _model(nodes, opset_imports=[helper.make_opsetid("", version)])


MODELS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "wrong_value_info": _wrong_value_info,
    "wrong_output_shape": _wrong_output_shape,
    "dimension_minus_one": _minus_one,
    "initializer_is_input": _initializer_is_input,
    "initializer_is_output": _initializer_is_output,
    "sparse_initializer": _sparse_initializer,
    "initializer_of_1024_in_body": _big_initializer_in_body,
    "function": _function,
    "name_with_slash": partial(_names, "/a/b:0"),
    "name_of_a_device": partial(_names, "CON"),
    "name_with_quotes": partial(_names, "a'b\"c"),
    "name_not_ascii": partial(_names, "größe/\u6570"),
    "name_with_dots": partial(_names, "../../a"),
    "loop_without_trip_count": _loop_without_trip_count,
    "outputs_left_out": _outputs_left_out,
    "optional_output": _optional_output,
    "zip_map": _zip_map,
    "opset7": partial(_old_opset, 7),
    "opset9": partial(_old_opset, 9),
}


def _save(make: Callable[[], onnx.ModelProto], folder: Path) -> None:
    (folder / "model.onnx").write_bytes(make().SerializeToString())


def _external(folder: Path, *, shared: bool) -> None:
    """Weights in files beside the model; `shared`: two of them are the same bytes."""
    weights = np.arange(2000, dtype=np.float32)
    (folder / "weights").mkdir()
    (folder / "weights" / "all.bin").write_bytes(weights.tobytes())
    tensors = []
    for place, name in enumerate("ab"):
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[1000])
        tensor.data_location = TensorProto.EXTERNAL
        offset = 0 if shared else 4000 * place
        for key, value in (("location", "weights/all.bin"), ("offset", offset), ("length", 4000)):
            tensor.external_data.add(key=key, value=str(value))
        tensors.append(tensor)
    nodes = [helper.make_node("Mul", ["x", "a"], ["m"]), helper.make_node("Add", ["m", "b"], ["y"])]
    ends = {"inputs": [_value("x", shape=(1000,))], "outputs": [_value("y", shape=(1000,))]}
    (folder / "model.onnx").write_bytes(
        _model(nodes, initializer=tensors, **ends).SerializeToString()
    )


def recipes() -> Iterator[Recipe]:
    """One model a kind; those that onnx itself refuses or trips over are other tests', too."""
    made: dict[str, Callable[[Path], None]] = {
        **{name: partial(_text, text) for name, text in TEXTS.items()},
        **{name: partial(_save, make) for name, make in MODELS.items()},
        "external_data": partial(_external, shared=False),
        "external_data_shared": partial(_external, shared=True),
    }
    for kinds in (
        oddities.FORBIDDEN,
        oddities.INSIDE,
        {name: make for name, (make, _) in oddities.SCOPES.items()},
        {kind: partial(oddities.search, kind) for kind in oddities.SEARCHES},
    ):
        made |= {name.replace(" ", "_"): partial(_save, make) for name, make in kinds.items()}
    for name, make in made.items():
        yield Recipe(f"{name}.oddity", "generated oddity", make, False)
