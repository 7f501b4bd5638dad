"""A model cut into pieces: what belongs to which, and that a chain of them computes the whole."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper

from epctx.graph.epcontext import Cuts
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource
from epctx.verification.numbers import pieces, sessions
from epctx.verification.numbers.pieces import Pieces, Values
from tests.kit import in_pieces, onnx_text

HEAD = "g (float[n,4] x, bool c) => (float[n,4] y) <float[4,4] w> "
BRANCHES = f"""{HEAD} {{
  a = MatMul(x, w)
  m = Sigmoid(x)
  b = Tanh(a)
  y = If (c) <then_branch = t () => (p) {{ p = Add(b, a) }},
              else_branch = e () => (q) {{ u = Mul(b, m)  q = MatMul(u, w) }}>
}}"""
FUNCTION = f"""{HEAD} {{
  a = local.f(x)
  b = MatMul(a, w)
  k = Not(c)
  d = Where(k, a, b)
  y = local.f(d)
}}
<domain: "local", opset_import: ["" : 21]> f (v) => (r) {{ s = Tanh(v)  r = Add(s, v) }}"""


Parts = list[tuple[tuple[str, ...], tuple[str, ...], list[str]]]


def parts(tmp_path: Path, body: str, cuts: Cuts) -> Parts:
    """Inputs, outputs and what the nodes make, of each piece."""
    graph = onnx.load(in_pieces.source(tmp_path / "m.onnx", body)).graph
    return [
        (step.inputs, step.outputs, [graph.node[i].output[0] for i in step.nodes])
        for step in pieces.split(graph, cuts)
    ]


def test_a_value_may_skip_a_piece_and_what_is_cheap_is_computed_again(tmp_path: Path) -> None:
    assert parts(tmp_path, in_pieces.MLP, in_pieces.CUTS) == [
        (("bias", "x"), ("m1", "a1", "early"), ["mask", "h1", "early", "a1", "m1"]),
        (("bias", "m1"), ("m2",), ["mask", "h2", "a2", "m2"]),
        (("m2", "a1"), ("z",), ["h3", "z"]),
    ]


def test_what_a_body_captures_is_an_input_of_its_piece(tmp_path: Path) -> None:
    assert parts(tmp_path, BRANCHES, (("a",), ("b", "a"))) == [
        (("x",), ("a",), ["a"]),
        (("a",), ("b",), ["b"]),
        (("x", "c", "b", "a"), ("y",), ["m", "y"]),
    ]


@pytest.mark.parametrize(
    ("node", "cut", "place"),
    [
        ("o = Relu(h1)", "a1", 0),  # of a value that only the first piece has
        ("o = Add(h1, a1)", "a1", 0),  # computed again, the first piece would be in the second
        ("o = Relu(a1)", "a1", 1),  # of what crosses
        ("o = Mul(a1, x)", "a1", 1),
        ("o = Identity(x)", "a1", 0),
    ],
)
def test_an_output_belongs_to_the_piece_that_has_what_it_takes(
    tmp_path: Path, node: str, cut: str, place: int
) -> None:
    body = f"""g (float[2,4] x) => (float[2,4] z, float[2,4] o) <float[4,4] w> {{
      s1 = MatMul(x, w)  s2 = MatMul(s1, w)  h1 = MatMul(s2, w)  a1 = Tanh(h1)
      z = MatMul(a1, w)  {node}
    }}"""
    outputs = [made for _, made, _ in parts(tmp_path, body, ((cut,),))]
    assert ["o" in made for made in outputs] == [place == 0, place == 1]


def test_pieces_between_which_the_source_lacks_a_value_are_one(tmp_path: Path) -> None:
    """The other values of that cut are made all the same: they can be compared."""
    assert parts(tmp_path, in_pieces.MLP, (("renamed", "a1"), ("m2", "a1"))) == [
        (
            ("bias", "x"),
            ("m2", "a1", "early"),
            ["mask", "h1", "early", "a1", "m1", "h2", "a2", "m2"],
        ),
        (("m2", "a1"), ("z",), ["h3", "z"]),
    ]
    body = in_pieces.MLP.replace("m2", "other")
    (whole,) = parts(tmp_path, body, (("renamed", "a1"), ("m2", "a1")))
    assert whole[1] == ("early", "z", "a1")


def run(path: Path, cuts: Cuts, feeds: Feeds) -> tuple[Feeds, list[weakref.ref[Any]]]:
    """Outputs and crossing values of a model in pieces, and the sessions that were open."""
    source = ModelSource(name="m", path=path)
    opened: list[weakref.ref[Any]] = []

    def open_(changed: bytes) -> ort.InferenceSession:
        assert not any(each() for each in opened), "one is open at a time"
        session = sessions.open_source(source, changed=changed)
        opened.append(weakref.ref(session))
        return session

    return Pieces(source, cuts).run(open_, feeds, inner=True), opened


@pytest.mark.parametrize(
    ("body", "cuts"),
    [
        (BRANCHES, (("a",), ("b", "a"))),
        (FUNCTION, (("a",), ("b", "a"))),
        (FUNCTION, (("a",), ("d",))),
    ],
    ids=["bodies", "functions", "computed again"],
)
@pytest.mark.parametrize("external", [False, True])
def test_a_chain_computes_the_whole_with_one_piece_open(
    tmp_path: Path, body: str, cuts: Cuts, external: bool
) -> None:
    path = in_pieces.source(tmp_path / "m.onnx", body)
    if external:
        model = onnx.load(path)
        onnx.save(model, path, save_as_external_data=True, location="data", size_threshold=0)
    whole = sessions.open_source(ModelSource(name="m", path=path))
    for batch, chosen in ((2, True), (3, False)):
        x = np.random.default_rng(batch).standard_normal((batch, 4)).astype(np.float32)
        feeds: Feeds = {"x": x, "c": np.array(chosen)}
        found, opened = run(path, cuts, feeds)
        assert [*found][:1] == ["y"] and len(opened) == len(cuts) + 1
        assert {*found} == {"y", *(name for cut in cuts for name in cut)}
        np.testing.assert_allclose(np.float32(found["y"]), whole.run(["y"], feeds)[0], rtol=1e-6)


def test_large_weights_are_not_in_the_models_of_pieces(tmp_path: Path) -> None:
    body = """g (float[1,64] x) => (float[1,64] y) <float[64,64] w, float[64,64] v> {
      a = MatMul(x, w)  b = MatMul(a, w)  y = MatMul(b, v)
    }"""
    source = ModelSource(name="m", path=in_pieces.source(tmp_path / "m.onnx", body))
    found = Pieces(source, (("a",),))
    given: Feeds = {"x": np.ones((1, 64), np.float32), "a": np.ones((1, 64), np.float32)}
    models = [found.model(step, {n: given[n] for n in step.inputs}) for step in found.steps]
    assert all(model.ByteSize() < 1000 for model in models)
    names = [{t.name for t in model.graph.initializer} for model in models]
    assert names == [{"w"}, {"w", "v"}], "a weight that two pieces read is in both"


def test_values_that_numpy_lacks_cross_too(tmp_path: Path) -> None:
    body = "g (float[4] x) => (float[4] y) { a = Cast<to = 16>(x)  y = Cast<to = 1>(a) }"
    path = in_pieces.source(tmp_path / "m.onnx", body)
    found, _ = run(path, (("a",),), {"x": np.array([1, 2.5, -3, 0], np.float32)})
    assert found["a"].dtype == ml_dtypes.bfloat16
    assert found["y"].tolist() == [1, 2.5, -3, 0]


def test_parts_of_a_sequence_are_outputs(tmp_path: Path) -> None:
    body = "g (float[4] x) => (seq(float[k]) s, float[4] z) { a = Relu(x)  z = Tanh(a)  s = f(a) }"
    model = onnx_text.proto(body)
    model.graph.node[2].CopyFrom(
        helper.make_node("SplitToSequence", ["a"], ["s"], axis=0, keepdims=1)
    )
    onnx.save(model, tmp_path / "m.onnx")
    found, _ = run(tmp_path / "m.onnx", (("a",),), {"x": np.arange(4, dtype=np.float32)})
    assert [*found] == ["s[0]", "s[1]", "s[2]", "s[3]", "z", "a"]


def test_what_is_kept_of_a_piece_is_not_computed_again(tmp_path: Path) -> None:
    path = in_pieces.source(tmp_path / "m.onnx")
    source = ModelSource(name="m", path=path)
    opened: list[bytes] = []

    def open_(changed: bytes) -> ort.InferenceSession:
        opened.append(changed)
        if len(opened) == 2:
            raise RuntimeError("ended")
        return sessions.open_source(source, changed=changed)

    feeds: Feeds = {"x": np.ones((2, 8), np.float32), "bias": np.ones(8, np.float32)}
    found, values = Pieces(source, in_pieces.CUTS), Values(tmp_path, "m")
    with pytest.raises(RuntimeError, match="ended"):
        found.run(open_, feeds, values)
    assert [*found.run(open_, feeds, values)] == ["early", "z"]
    assert len(opened) == 4
    assert [*values.read(feeds, ["m2", "a1", "no such value"])] == ["m2", "a1"]
