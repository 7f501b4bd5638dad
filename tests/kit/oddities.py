"""Models that ONNX Runtime runs, though ONNX forbids them or onnx's own tools trip over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.kit import onnx_text

Make = Callable[[], onnx.ModelProto]
FORBIDDEN: dict[str, Make] = {}
"""Those that ONNX forbids."""

_parsed = partial(onnx_text.proto, opsets='"" : 17', ir_version=8)
_IN, _OUT = "float[2, 4] x", "float[2, 4] y"


def weight(name: str, *values: float) -> onnx.TensorProto:
    """A float tensor of one dimension."""
    return numpy_helper.from_array(np.array(values, np.float32), name)


def _forbidden(make: Make) -> Make:
    FORBIDDEN[make.__name__.replace("_", " ")] = make
    return make


def _text(
    body: str, *weights: onnx.TensorProto, opsets: str = '"" : 17', ins: str = _IN
) -> onnx.ModelProto:
    model = _parsed(f"g ({ins}) => ({_OUT}) {{ {body} }}", opsets=opsets)
    model.graph.initializer.extend(weights)
    return model


@_forbidden
def layer_normalization_before_opset_17() -> onnx.ModelProto:
    body = "t = LayerNormalization <axis = -1> (x, s) y = Relu(t)"
    return _text(body, weight("s", 1, 2, 3, 4), opsets='"" : 12')


@_forbidden
def simplified_layer_normalization() -> onnx.ModelProto:
    body = "t = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, s) y = Relu(t)"
    return _text(body, weight("s", 1, 2, 3, 4), opsets='"" : 21')


@_forbidden
def no_import_of_com_microsoft() -> onnx.ModelProto:
    return _text("y = com.microsoft.Gelu(x)")


@_forbidden
def no_import_of_ai_onnx_ml() -> onnx.ModelProto:
    return _text('y = ai.onnx.ml.Normalizer <norm = "L2"> (x)')


@_forbidden
def no_import_of_ai_onnx() -> onnx.ModelProto:
    return _text("y = Relu(x)", opsets='"com.microsoft" : 1')


@_forbidden
def no_import_of_what_a_body_uses() -> onnx.ModelProto:
    branch = "{} = b () => (float[2, 4] {}) {{ {} = com.microsoft.Gelu(x) }}"
    both = f"{branch.format('then_branch', 'p', 'p')}, {branch.format('else_branch', 'q', 'q')}"
    return _text(f"c = Constant <value = bool {{1}}> () y = If(c) <{both}>")


@_forbidden
def an_output_without_a_type() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    model.graph.output[0].ClearField("type")
    return model


@_forbidden
def an_output_without_a_type_of_an_operator_of_onnx_runtime() -> onnx.ModelProto:
    body = "t = Relu(x) y = com.microsoft.FastGelu(t)"
    model = _text(body, opsets='"" : 17, "com.microsoft" : 1')
    model.graph.output[0].ClearField("type")
    return model


@_forbidden
def two_opsets_of_one_domain() -> onnx.ModelProto:
    model = _text("t = ReduceMean <axes = [1]> (x) y = Mul(x, t)")
    model.opset_import.insert(0, helper.make_opsetid("", 18))
    return model


@_forbidden
def two_opsets_of_a_domain_of_two_names() -> onnx.ModelProto:
    model = _text("t = ReduceMean <axes = [1]> (x) y = ai.onnx.Mul(x, t)")
    model.opset_import.insert(0, helper.make_opsetid("ai.onnx", 18))
    return model


@_forbidden
def nodes_without_inputs_and_outputs() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["q"])], "b", [], [])
    model.graph.node.append(
        helper.make_node("If", [], [], then_branch=branch, else_branch=branch, name="if")
    )
    model.graph.node.append(helper.make_node("NobodyHasIt", [], []))
    return model


@_forbidden
def constants_of_one_name() -> onnx.ModelProto:
    one, two = (f"[k] c = Constant <value = float[1] {{{n}}}> ()" for n in (1, 2))
    return _text(f"{one} t = Add(x, c) {two} y = Mul(t, c)")


@_forbidden
def a_constant_and_an_initializer_of_one_name() -> onnx.ModelProto:
    return _text("c = Constant <value = float[1] {3}> () y = Mul(x, c)", weight("c", 5))


@_forbidden
def initializers_of_one_name() -> onnx.ModelProto:
    return _text("y = Mul(x, c)", weight("c", 5), weight("c", 7))


@_forbidden
def large_initializers_of_one_name() -> onnx.ModelProto:
    one = numpy_helper.from_array(np.full((512, 4), 3, np.float32), "c")
    bounds = [numpy_helper.from_array(np.array([n], np.int64), f"n{n}") for n in (0, 2)]
    return _text("t = Slice(c, n0, n2) y = Mul(x, t)", one, one, *bounds)


@_forbidden
def a_sparse_constant_that_is_not_sorted() -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["c"], sparse_value=sparse("", [7, 8], [3, 1]))
    model = _text("y = Mul(x, c)")
    model.graph.node.insert(0, constant)
    return model


@_forbidden
def a_sparse_constant_before_opset_11() -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["c"], sparse_value=sparse("", [7], [3]))
    model = _text("y = Mul(x, c)", opsets='"" : 9')
    model.graph.node.insert(0, constant)
    return model


@_forbidden
def a_tensor_with_values_in_two_fields() -> onnx.ModelProto:
    given = helper.make_tensor("c", TensorProto.FLOAT, [4], [1, 2, 3, 4])
    given.int32_data.append(1)
    return _text("y = Mul(x, c)", given)


@_forbidden
def a_tensor_with_raw_and_other_values() -> onnx.ModelProto:
    given = weight("c", 1, 2, 3, 4)
    given.float_data.extend([5, 6, 7, 8])
    return _text("y = Mul(x, c)", given)


@_forbidden
def metadata_of_one_key() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    for value in ("one", "two"):
        model.metadata_props.add(key="k", value=value)
    return model


def sparse(name: str, values: Sequence[float], indices: Sequence[int]) -> onnx.SparseTensorProto:
    """A sparse tensor of four elements."""
    found = TensorProto(name="i", data_type=TensorProto.INT64, dims=[len(indices)])
    found.int64_data.extend(indices)
    return onnx.SparseTensorProto(values=weight(name, *values), indices=found, dims=[4])


def labels(count: int) -> onnx.NodeProto:
    """A LabelEncoder of this many int64 labels, in tensors: 8 and 4 bytes each."""
    return helper.make_node(
        "LabelEncoder",
        ["i"],
        ["l"],
        domain="ai.onnx.ml",
        keys_tensor=numpy_helper.from_array(np.arange(count, dtype=np.int64)),
        values_tensor=numpy_helper.from_array(np.arange(count, dtype=np.float32) + 1),
        default_tensor=numpy_helper.from_array(np.zeros(1, np.float32)),
    )


def tree(depth: int) -> onnx.NodeProto:
    """A TreeEnsemble of one balanced tree, in tensors: 4 bytes for each of its nodes."""
    inner = 2**depth - 1
    after = [(2 * i + side, 2 * i + side >= inner) for i in range(inner) for side in (1, 2)]
    places = [child - inner if leaf else child for child, leaf in after]
    leaves = [int(leaf) for _, leaf in after]
    return helper.make_node(
        "TreeEnsemble",
        ["x"],
        ["l"],
        domain="ai.onnx.ml",
        n_targets=1,
        aggregate_function=1,
        post_transform=0,
        tree_roots=[0],
        nodes_modes=numpy_helper.from_array(np.zeros(inner, np.uint8)),
        nodes_featureids=[i % 4 for i in range(inner)],
        nodes_splits=numpy_helper.from_array(np.linspace(-1, 1, inner).astype(np.float32)),
        nodes_truenodeids=places[::2],
        nodes_trueleafs=leaves[::2],
        nodes_falsenodeids=places[1::2],
        nodes_falseleafs=leaves[1::2],
        leaf_targetids=[0] * (inner + 1),
        leaf_weights=numpy_helper.from_array(np.arange(1, inner + 2).astype(np.float32)),
    )


def constant(count: int) -> onnx.NodeProto:
    """A Constant of this many floats."""
    value = numpy_helper.from_array(np.arange(count, dtype=np.float32), "t")
    return helper.make_node("Constant", [], ["k"], value=value)


def _sum(node: onnx.NodeProto, *, body: str = "") -> onnx.ModelProto:
    """What a node makes, summed up, plus the input; the node in a body, or in a body of a body."""
    total = helper.make_node("ReduceSum", [node.output[0]], ["r"], keepdims=0)
    nodes = [node, total]
    for depth, kind in enumerate(body.split()):
        nodes = [_around(nodes, kind, f"o{depth}")]
    nodes += [helper.make_node("Add", ["x", nodes[-1].output[0]], ["y"])]
    model = _parsed(f"g ({_IN}, bool c, int64 n) => ({_OUT}) {{ y = Relu(x) }}")
    given = [("i", np.array([[0, 1, 100]], np.int64)), ("zero", np.float32(0))]
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in given)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    model.opset_import.add(domain="ai.onnx.ml", version=5)
    return model


def _around(nodes: list[onnx.NodeProto], kind: str, name: str) -> onnx.NodeProto:
    """An If or a Loop whose body makes what the last of the nodes makes."""
    value, scalar = helper.make_tensor_value_info, TensorProto.FLOAT
    made = nodes[-1].output[0]
    if kind == "If":
        other = helper.make_node("Identity", ["zero"], [f"else_{name}"])
        no = helper.make_graph([other], "no", [], [value(other.output[0], scalar, [])])
        yes = helper.make_graph(nodes, "yes", [], [value(made, scalar, [])])
        return helper.make_node("If", ["c"], [name], then_branch=yes, else_branch=no)
    body = helper.make_graph(
        [
            *nodes,
            helper.make_node("Identity", [f"go_{name}"], [f"on_{name}"]),
            helper.make_node("Add", [f"sum_{name}", made], [f"next_{name}"]),
        ],
        "body",
        [
            value(f"at_{name}", TensorProto.INT64, []),
            value(f"go_{name}", TensorProto.BOOL, []),
            value(f"sum_{name}", scalar, []),
        ],
        [value(f"on_{name}", TensorProto.BOOL, []), value(f"next_{name}", scalar, [])],
    )
    return helper.make_node("Loop", ["n", "c", "zero"], [name], body=body)


INSIDE: dict[str, Make] = {
    f"{what} in {body or 'the graph'}": partial(_sum, node, body=body)
    for what, node in {
        "a constant of 1020 bytes": constant(255),
        "a constant of 1024 bytes": constant(256),
        "a constant of 1028 bytes": constant(257),
        "a constant of 80 kB": constant(20_000),
        "labels of 1024 bytes": labels(128),
        "labels of 80 kB": labels(10_000),
        "a tree of 4 kB": tree(10),
    }.items()
    for body in ("", "If", "Loop", "If Loop", "Loop If")
}
"""Those that hold large tensors in nodes, in bodies too: they have the inputs x, c and n."""


Sizes = Mapping[str, int]
SCOPES: dict[str, tuple[Make, Sizes]] = {}
"""Those in which a name means one thing here and another there; the sizes of dimensions of x."""


def _scoped(**sizes: int) -> Callable[[Make], Make]:
    def keep(make: Make) -> Make:
        SCOPES[make.__name__.replace("_", " ")] = make, sizes
        return make

    return keep


def _branches(then: str, other: str, declared: str = "float[2, 4]") -> str:
    """An If of two bodies, each makes `p`, or `q`."""
    return (
        f"If(c) <then_branch = t () => ({declared} p) {{ {then} }}, "
        f"else_branch = e () => ({declared} q) {{ {other} }}>"
    )


_TRUE = "c = Constant <value = bool {1}> ()"


@_scoped(N=2, M=4)
def a_symbol_in_a_branch_is_another_size() -> onnx.ModelProto:
    given = _branches(
        "t1 = Transpose(x) p = Abs(t1)", "t2 = Transpose(x) q = Neg(t2)", "float[N, M]"
    )
    return _parsed(f"g (float[N, M] x) => (float[M, N] y) {{ {_TRUE} y = {given} }}")


@_scoped(N=2)
def a_symbol_in_the_body_of_a_loop_grows() -> onnx.ModelProto:
    body = (
        "body = b (int64 i, bool go, float[N, 4] a) => (bool on, float[N, 4] o, int64[2] s) "
        "{ on = Identity(go) o = Concat <axis = 0> (a, x) s = Shape(a) }"
    )
    return _parsed(
        "g (float[N, 4] x) => (float[R, 4] y, int64[I, 2] s) "
        f"{{ {_TRUE} n = Constant <value = int64 {{3}}> () y, s = Loop(n, c, x) <{body}> }}"
    )


@_scoped(N=2)
def a_symbol_in_the_body_of_a_scan_is_another_size() -> onnx.ModelProto:
    body = (
        "body = b (float[N] s, float[N] e) => (float[N] t, float[N] o) "
        "{ t = Add(s, e) o = Identity(t) }"
    )
    return _parsed(
        "g (float[N, 4] x) => (float[4] last, float[N, 4] y) "
        f"{{ z = Constant <value_floats = [0.0, 1.0, 2.0, 3.0]> () "
        f"last, y = Scan <num_scan_inputs = 1, {body}> (z, x) }}"
    )


@_scoped(N=2)
def an_initializer_of_a_branch_has_the_name_of_an_outer_one() -> onnx.ModelProto:
    then = "then_branch = t () => (float[N, 4] p) <float[1] w = {10.0}> { p = Add(x, w) }"
    other = "else_branch = e () => (float[N, 4] q) { q = Mul(x, w) }"
    body = f"{_TRUE} w = Constant <value_floats = [2.0]> () y = If(c) <{then}, {other}>"
    return _parsed(f"g (float[N, 4] x) => (float[N, 4] y) {{ {body} }}")


def _function(call: str, function: str, opsets: str, x: str = "float[2, 4]") -> onnx.ModelProto:
    return _parsed(
        f"g ({x} x) => (float y) {{ t = {call} y = ReduceSum <keepdims = 0> (t) }} {function}",
        opsets=opsets,
    )


@_scoped(N=2, M=4)
def a_symbol_in_a_function_is_another_size() -> onnx.ModelProto:
    function = (
        '<domain: "l", opset_import: ["" : 17, "com.microsoft" : 1]> f (a) => (b) '
        "{ t = com.microsoft.Gelu(a) b = Relu(t) }"
    )
    model = _parsed(
        f"g (float[N, M] x) => (float[P, Q] y) {{ u = Transpose(x) y = l.f(u) }} {function}",
        opsets='"" : 17, "l" : 1',
        ir_version=10,
    )
    declared = helper.make_tensor_value_info("t", TensorProto.FLOAT, ["N", "M"])
    model.functions[0].value_info.append(declared)
    return model


@_scoped()
def a_function_with_the_name_of_an_operator_of_onnx() -> onnx.ModelProto:
    function = '<domain: "", opset_import: ["" : 17]> Relu (a) => (b) { b = Neg(a) }'
    return _function("Relu(x)", function, '"" : 17')


@_scoped()
def a_function_with_the_name_of_an_operator_of_onnx_runtime() -> onnx.ModelProto:
    head = '<domain: "com.microsoft", opset_import: ["" : 17]>'
    opsets = '"" : 17, "com.microsoft" : 1'
    return _function("com.microsoft.Gelu(x)", f"{head} Gelu (a) => (b) {{ b = Neg(a) }}", opsets)


@_scoped()
def a_function_called_so_by_a_function() -> onnx.ModelProto:
    functions = (
        '<domain: "com.microsoft", opset_import: ["" : 17]> Gelu (a) => (b) { b = Neg(a) } '
        '<domain: "l", opset_import: ["" : 17, "com.microsoft" : 1]> f (a) => (b) '
        "{ b = com.microsoft.Gelu(a) }"
    )
    return _function("l.f(x)", functions, '"" : 17, "l" : 1, "com.microsoft" : 1')


@_scoped()
def a_function_of_another_opset() -> onnx.ModelProto:
    function = (
        '<domain: "l", opset_import: ["" : 11]> f (a) => (b) { s = Softmax(a) b = Mul(s, a) }'
    )
    return _function("l.f(x)", function, '"" : 13, "l" : 1', "float[2, 3, 4]")


@_scoped()
def a_function_called_twice_with_attributes() -> onnx.ModelProto:
    function = (
        '<domain: "l", opset_import: ["" : 17]> f <by> (a) => (b) '
        "{ b = LeakyRelu <alpha : float = @by> (a) }"
    )
    calls = "b = l.f <by = 0.5> (x) a = l.f <by = 0.25> (b) y = Add(a, b)"
    return _parsed(f"g ({_IN}) => ({_OUT}) {{ {calls} }} {function}", opsets='"" : 17, "l" : 1')


@_scoped()
def bodies_with_names_of_the_graph_around() -> onnx.ModelProto:
    given = _branches("p = Add(x, w)", "q = Sub(x, w)")
    model = _parsed(
        f"g ({_IN}) => ({_OUT}) {{ {_TRUE} w = Neg(x) m = {given} "
        "late = Abs(m) u = Add(late, w) y = Mul(u, m) }"
    )
    (chooses,) = (node for node in model.graph.node if node.op_type == "If")
    then, other = (attribute.g for attribute in chooses.attribute)
    for branch, value in ((then, 5), (other, 7)):
        branch.initializer.append(numpy_helper.from_array(np.full((2, 4), value, np.float32), "w"))
    other.node[0].output[0] = other.output[0].name = "late"
    return model


@_scoped()
def branches_with_the_same_names() -> onnx.ModelProto:
    inner = (
        "p = If(c) <then_branch = tt () => (float[2, 4] r) {{ r = {} }}, "
        "else_branch = te () => (float[2, 4] r) {{ r = {} }}>"
    )
    then = inner.format("Relu(x)", "Neg(x)")
    other = inner.format("Abs(x)", "Exp(x)")
    return _text(f"{_TRUE} y = {_branches(then, f'{other} q = Abs(p)')}")


@_scoped()
def the_state_of_a_loop_named_as_values_around_it() -> onnx.ModelProto:
    body = (
        "body = b (int64 i, bool c, float[2, 4] x) => (bool on, float[2, 4] o) "
        "{ on = Identity(c) o = Add(x, a) }"
    )
    loop = f"n = Constant <value = int64 {{3}}> () z = Loop(n, c, x) <{body}>"
    return _text(f"{_TRUE} a = Neg(x) {loop} y = Mul(a, z)")


SEARCHES = ("GreedySearch", "BeamSearch", "Sampling")


def search(kind: str) -> onnx.ModelProto:
    """A decoder of two layers' worth of nothing, and ONNX Runtime's search with it.

    ONNX Runtime finds inputs and outputs of the decoder by their names; the graph around has an
    input of one of these names, and the weights that the decoder uses.
    """
    rng = np.random.default_rng(3)
    value, ints, floats = helper.make_tensor_value_info, TensorProto.INT32, TensorProto.FLOAT
    table = rng.standard_normal((8, 4)).astype(np.float32)
    weights = {"table": table, "head": rng.standard_normal((4, 8)).astype(np.float32)}
    axes = {"front": [0, 2], "rest": [0, 2, 3], "last": [1]}
    node = helper.make_node
    decoder = helper.make_graph(
        [
            node("Gather", ["table", "input_ids"], ["e"]),
            node("MatMul", ["e", "head"], ["own"]),
            node("Unsqueeze", ["e", "front"], ["k"]),
            node("Concat", ["k", "k"], ["kv"], axis=0),
            node("Concat", ["past_0", "kv"], ["present_0"], axis=3),
            node("ReduceSum", ["present_0", "rest"], ["s"], keepdims=0),
            node("MatMul", ["s", "head"], ["past_head"]),
            node("Unsqueeze", ["past_head", "last"], ["before"]),
            node("Add", ["own", "before"], ["logits"]),
        ],
        "decoder",
        [
            value("input_ids", ints, ["B", "S"]),
            value("position_ids", ints, ["B", "S"]),
            value("attention_mask", ints, ["B", "T"]),
            value("past_0", floats, [2, "B", 1, "P", 4]),
        ],
        [value("logits", floats, ["B", "S", 8]), value("present_0", floats, [2, "B", 1, "Q", 4])],
    )
    bounds = {"most": np.array([7], np.int32), "least": np.array([1], np.int32)}
    beams = {"beams": np.array([2], np.int32), "given": np.array([1], np.int32)}
    penalties = {"by_length": np.ones(1, np.float32), "by_repetition": np.ones(1, np.float32)}
    settings: dict[str, Any] = {"eos_token_id": 0, "pad_token_id": 0, "model_type": 0}
    asked = [*bounds, "by_repetition"]
    if kind == "BeamSearch":
        asked = [*bounds, *beams, *penalties]
    if kind == "Sampling":
        settings |= {"top_p": 0.01, "min_tokens_to_keep": 1, "vocab_size": 8, "custom": 0}
    graph = helper.make_graph(
        [
            node("Identity", ["input_ids"], ["ids"]),
            node(
                kind,
                ["ids", *asked],
                ["found"],
                domain="com.microsoft",
                decoder=decoder,
                **settings,
            ),
            node("Cast", ["found"], ["y"], to=TensorProto.INT64),
        ],
        "g",
        [value("input_ids", ints, ["batch", "sequence"])],
        [value("y", TensorProto.INT64, None)],
        [
            numpy_helper.from_array(np.asarray(array), name)
            for name, array in (weights | axes | bounds | beams | penalties).items()
        ],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)
