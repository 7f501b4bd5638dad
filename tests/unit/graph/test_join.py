"""EPContext models joined into one."""

from __future__ import annotations

from epctx.graph.join import Part, join
from epctx.graph.wiring import Port, Wiring
from tests.kit import onnx_text


def _part(name: str, prefix: str) -> Part:
    body = "d (float[3] x, float[3] z) => (float[3] y) { t = Add(x, z) y = Neg(t) }"
    model = onnx_text.model(
        f"g (float[3] x) => (float[3] y) {{ [n] y = own.Find(x) <body = {body}> }}",
        opsets='"" : 21, "own" : 1',
        infer=False,
    )
    return Part(name=name, model=model, prefix=prefix, fixed=(), kept=(), data={}, group=name)


def test_bodies_keep_the_names_that_their_operator_knows() -> None:
    parts = [_part("one", "one_"), _part("two", "two_")]
    wiring = Wiring(
        links={Port(part="two", name="x"): Port(part="one", name="y")},
        inputs={"x": (Port(part="one", name="x"),)},
        outputs={"y": Port(part="two", name="y")},
    )
    whole = join("whole", parts, wiring, where="c")
    for node, prefix in zip(whole.graph, ("one_", "two_"), strict=True):
        body = node.attributes["body"].as_graph()
        assert [value.name for value in (*body.inputs, *body.outputs)] == ["x", "z", "y"]
        assert body[0].outputs[0].name == f"{prefix}t"
