"""Arms of decisions, how often they are taken, and nodes that depend on them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from epctx.graph import decisions
from epctx.graph.decisions import Program
from tests.kit import onnx_text

X = np.array([[1, 2, 3, 4]], np.float32)
REPEATED = """g (float[1, 4] x, bool c, int64 n) => (float[1, 4] y) {
  [unused] z = Exp (x)
  p, q = If (c) <
    then_branch = t () => (float[1, 4] a, float[1, 4] b) {
      a = Loop (n, , x) <
        body = l (int64 i, bool m, float[1, 4] s) => (bool k, float[1, 4] r) {
          k = Identity (m)  r = Add (s, x)
        }
      >
      b = Neg (x)
    },
    else_branch = e () => (float[1, 4] d, float[1, 4] f) { d = Abs (x)  f = Exp (x) }
  >
  y = Add (p, z)
}"""


def counts(model: onnx.ModelProto, **feeds: object) -> list[float]:
    """How often each arm is taken, as the instrumented model says."""
    counting = decisions.instrumented(model).SerializeToString()
    session = ort.InferenceSession(counting, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": X, **{k: np.array(v) for k, v in feeds.items()}})
    return [float(count) for count in found]


@pytest.mark.parametrize("opset", [7, 9, 12, 17, 23])
def test_arms_are_counted_in_bodies_of_any_opset(opset: int) -> None:
    """Then, ran, ran again (the sum of earlier iterations), else."""
    model = onnx_text.proto(REPEATED, opsets=f'"" : {opset}', ir_version=3 if opset == 7 else 8)
    assert counts(model, c=True, n=0) == [1, 0, 0, 0]
    assert counts(model, c=True, n=1) == [1, 1, 0, 0]
    assert counts(model, c=True, n=2) == [1, 2, 1, 0]
    assert counts(model, c=False, n=2) == [0, 0, 0, 1]


def test_sides_of_a_where_are_counted_in_each_iteration() -> None:
    model = onnx_text.proto(
        """g (float[1, 4] x) => (float[4, 1] y) {
          z = Constant <value = float[1] {2.0}> ()  t = Transpose (x)
          f, y = Scan (z, t) <num_scan_inputs = 1, body = b (float[1] s, float[1] e) =>
            (float[1] u, float[1] o) {
              u = Identity (s)  g = Greater (e, s)  o = Where (g, e, s)
            }>
        }"""
    )
    assert counts(model) == [4, 6, 2, 2]


def test_what_no_arm_depends_on_is_left_out() -> None:
    model = onnx_text.proto(REPEATED)
    before = model.SerializeToString(deterministic=True)
    graph = decisions.instrumented(model).graph
    assert [node.op_type for node in graph.node] == ["If", "Concat", "Identity"]
    then, other = (attribute.g for attribute in graph.node[0].attribute)
    assert {node.op_type for node in then.node} == {"Constant", "Concat", "Loop"}
    assert {node.op_type for node in other.node} == {"Constant", "Concat"}
    assert [output.name for output in graph.output] == [decisions.ARMS]
    assert model.SerializeToString(deterministic=True) == before


def test_an_input_that_no_arm_depends_on_keeps_its_default() -> None:
    model = onnx_text.proto(
        REPEATED.replace("bool c", "float[4] w, bool c").replace("p, z", "p, w")
    )
    model.graph.initializer.append(numpy_helper.from_array(X[0], "w"))
    assert counts(model, c=True, n=1) == [1, 1, 0, 0]


def test_names_of_a_body_hide_those_of_the_graph_around() -> None:
    program = Program(
        onnx_text.proto(
            """g (float[1, 4] x, bool c) => (float[1, 4] y) {
              [outer] v = Exp (x)
              y = If (c) <
                then_branch = t () => (float[1, 4] v) { [inner] v = Abs (x) },
                else_branch = e () => (float[1, 4] w) { w = Neg (x) }
              >
            }"""
        )
    )
    names = [program.nodes[place].proto.name for place in sorted(program.reach({0, 1}))]
    assert names == ["", "inner", ""]


def decided(text: str, opsets: str = '"" : 17', sized: tuple[str, ...] = ()) -> tuple[str, str]:
    """Kinds of the nodes that decide by values, and of those that decide by sizes."""
    head = "g (float[b, 4] x, bool c, int64 n) => (y)"
    program = Program(onnx_text.proto(f"{head} {{ {text} }}", opsets=opsets), sized)
    return (
        " ".join(node.kind for node in program.open),
        " ".join(node.kind for node in program.sized),
    )


SIZE = "s = Shape (x)  o = Constant <value = int64[2] {1, 4}> ()  e = Equal (s, o)  "
FIRST = "z = Constant <value = int64 {0}> ()  f = Gather (e, z)  "
SQUEEZE = "y = If (f) <then_branch = t () => (a) { a = Abs (x) }, else_branch = e () => (d) {"
SQUEEZE = f"{SIZE}{FIRST}{SQUEEZE} d = Neg (x) }}>"


@pytest.mark.parametrize(
    ("text", "opsets", "sized", "kinds"),
    [
        (SQUEEZE, '"" : 17', (), ("", "")),
        (SQUEEZE, '"" : 17', ("x",), ("", "If")),
        # Exporters put a Where around sizes, for those that are -1.
        (f"{SIZE}w = Where (e, o, s)  y = Expand (x, w)", '"" : 17', ("x",), ("", "")),
        # The shape of a value may depend on values.
        (
            "i = NonZero (x)  k = Shape (i)  o = Constant <value = int64[2] {2, 0}> ()  "
            "e = Equal (k, o)  y = Where (e, k, o)",
            '"" : 17',
            (),
            ("Where", ""),
        ),
        # The last iteration is where the trip count says.
        (
            "y = Loop (n, , x) <body = b (int64 i, bool m, s) => (bool k, r) { k = Identity (m)  "
            "o = Constant <value = int64 {2}> ()  e = Equal (i, o)  r = Where (e, s, x) }>",
            '"" : 17',
            (),
            ("Loop Where", ""),
        ),
        (
            "y = Loop (, c, x) <body = b (int64 i, bool m, s) => (bool k, r) { o = Constant <value "
            "= int64 {2}> ()  k = Less (i, o)  e = Equal (i, o)  r = Where (e, s, x) }>",
            '"" : 17',
            (),
            ("Loop Where", ""),
        ),
        # Bodies that are not looked into: an operator that is no ONNX's, and the old Scan.
        (
            "y = other.If (c) <then_branch = t () => (a) { a = Where (c, x, x) }>",
            '"" : 17, "other" : 1',
            (),
            ("", ""),
        ),
        (
            "y = Scan (, x) <num_scan_inputs = 1, body = b (e) => (o) { o = Abs (e) }>",
            '"" : 8',
            ("x",),
            ("", ""),
        ),
    ],
)
def test_decisions_are_told_from_constants(
    text: str, opsets: str, sized: tuple[str, ...], kinds: tuple[str, str]
) -> None:
    assert decided(text, opsets, sized) == kinds
