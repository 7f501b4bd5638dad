"""Nodes that input sets exercise, and input sets for the others."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, external_data_helper, numpy_helper

from epctx.graph import inputs as graph_inputs
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource
from epctx.verification.numbers import branches, sessions
from epctx.verification.numbers.branches import Coverage
from tests.kit import onnx_text

X = np.array([[1, 2, 3, 4]], np.float32)
BOTH = "h = Abs (x)  [other] k = Neg (x)  "
PICK = "g (float[1, 4] x, bool[1, 4] c) => (float[1, 4] y) { " + BOTH + "y = Where (c, h, k) }"
IF = """g (float[1, 4] x, bool c) => (float[1, 4] y) {
  h = Exp (x)  [only] k = Neg (x)
  y = If (c) <
    then_branch = t () => (float[1, 4] a) { a = Abs (h) },
    else_branch = e () => (float[1, 4] b) { s = Mul (k, x)  b = Add (s, h) }
  >
}"""
NESTED = """g (float[1, 4] x, bool c, int64 n) => (float[1, 4] y) {
  y = If (c) <
    then_branch = t () => (float[1, 4] a) {
      a = Loop (n, , x) <
        body = b (int64 i, bool more, float[1, 4] s) => (bool again, float[1, 4] r) {
          again = Identity (more)  two = Constant <value = int64 {2}> ()  late = Greater (i, two)
          r = If (late) <
            then_branch = tt () => (float[1, 4] aa) { [inner] aa = Neg (s) },
            else_branch = ee () => (float[1, 4] bb) { bb = Mul (s, x) }
          >
        }
      >
    },
    else_branch = e () => (float[1, 4] b) { b = Abs (x) }
  >
}"""


def compared(kind: str, constant: str, op: str, number: int = 5) -> str:
    """A model whose node `other` counts if `v`, of type `kind`, compares to a constant."""
    return (
        f"g (float[1, 4] x, {kind} v) => (float[1, 4] y) {{ {BOTH}"
        f"i = Constant <value = int64 {{{number}}}> ()  n = Cast <to = {constant}> (i)  "
        f"c = {op} (v, n)  y = Where (c, k, h) }}"
    )


def save(folder: Path, model: str) -> ModelSource:
    """Write a model, and return it as a source."""
    onnx.save(onnx_text.proto(model, opsets='"" : 17, "my" : 1'), folder / "m.onnx")
    return ModelSource(name="m", path=folder / "m.onnx")


def completed(source: ModelSource, feeds: Feeds) -> tuple[Coverage, list[str], Coverage]:
    """Coverage of one input set, labels of the further ones, and coverage of all of them."""
    first = branches.measure(source, [feeds])
    inputs = graph_inputs.specs(onnx.load(source.path, load_external_data=False))
    sets = branches.further(source, inputs, feeds, first)
    for _, each in sets:
        assert {n: a.dtype for n, a in each.items()} == {n: a.dtype for n, a in feeds.items()}
    every = branches.measure(source, [feeds, *(each for _, each in sets)])
    return first, [label for label, _ in sets], every


@pytest.mark.parametrize(
    ("model", "values", "words", "unreached", "labels"),
    [
        # The branch that does not run, and what only it reads; its condition counts.
        (IF, {"c": True}, "50 % of 6 nodes", ["only", "Mul s", "Add b"], ["c=False"]),
        (IF, {"c": False}, "83 % of 6 nodes", ["Abs a"], ["c=True"]),
        (PICK, {"c": [[True] * 4]}, "66 % of 3 nodes", ["other"], ["c=False in part"]),
        (PICK, {"c": [[True, True, False, True]]}, "100 % of 3 nodes", [], []),
        (compared("int64", "7", "Equal", 3), {"v": 1}, "75 % of 4", ["other"], ["v=3"]),
        (compared("int64", "7", "Greater"), {"v": 1}, "75 % of 4", ["other"], ["v=6"]),
        (compared("float", "1", "Greater"), {"v": 1}, "75 % of 4", ["other"], ["v=6.0"]),
        (compared("float16", "10", "Greater"), {"v": 1}, "75 % of 4", ["other"], ["v=6.0"]),
        (compared("int32", "6", "Less", -5), {"v": 1}, "75 % of 4", ["other"], ["v=-6"]),
        (
            NESTED,
            {"c": False, "n": 0},
            "25 % of 8",
            ["Loop a", "Identity again", "Greater late", "If r", "inner", "Mul bb"],
            ["c=True, n=4"],
        ),
        (NESTED, {"c": True, "n": 2}, "75 % of 8", ["inner", "Abs b"], ["c=False", "n=4"]),
    ],
)
def test_the_other_value_of_what_decides_is_found(
    tmp_path: Path,
    model: str,
    values: dict[str, object],
    words: str,
    unreached: list[str],
    labels: list[str],
) -> None:
    source = save(tmp_path, model)
    kinds = {v.name: v.type for v in sessions.open_source(source).get_inputs()}
    numpy_kinds = {"tensor(bool)": "?", "tensor(float)": "f4", "tensor(float16)": "f2"}
    numpy_kinds |= {"tensor(int64)": "i8", "tensor(int32)": "i4"}
    feeds: Feeds = {"x": X}
    feeds |= {name: np.array(value, numpy_kinds[kinds[name]]) for name, value in values.items()}
    first, found, every = completed(source, feeds)
    assert first.words().startswith(words)
    assert list(first.unreached) == unreached
    assert found == labels
    assert every.unreached == ()
    assert every.words().startswith("100 %")
    assert branches.decides(onnx.load(source.path), source)


@pytest.mark.parametrize(
    ("body", "values", "first", "labels", "last"),
    [
        # Each constant of an Equal needs a set of its own, and so does `c`, which hides both.
        (
            "s = Constant <value = int64[2] {3, 7}> ()  e = Equal (n, s)  "
            "i = Constant <value = int64 {0}> ()  j = Constant <value = int64 {1}> ()  "
            "three = Gather (e, i)  seven = Gather (e, j)  a = Abs (x)  b = Neg (x)  d = Exp (x)  "
            "w = Where (three, a, x)  z = Where (seven, b, w)  y = Where (c, d, z)",
            {"n": 0, "c": False},
            ("Abs a", "Neg b", "Exp d"),
            ["n=3", "n=7", "c=True"],
            (),
        ),
        # Changes that do not hide each other share a set.
        (
            "k = Constant <value = int64 {3}> ()  e = Equal (n, k)  a = Abs (x)  b = Neg (x)  "
            "w = Where (e, a, x)  z = Where (c, b, x)  y = Add (w, z)",
            {"n": 0, "c": False},
            ("Abs a", "Neg b"),
            ["n=3, c=True"],
            (),
        ),
        # A change that hides what another one shows belongs into another set.
        (
            "k = Constant <value = int64 {3}> ()  e = Equal (n, k)  a = Abs (x)  b = Neg (x)  "
            "d = Exp (x)  w = Where (e, a, x)  z = Where (c, b, d)  y = Where (c, z, w)",
            {"n": 0, "c": False},
            ("Abs a", "Neg b", "Exp d", "Where z"),
            ["n=3", "c=True"],
            ("Exp d",),
        ),
        # An arm that needs the change of another set.
        (
            "k = Constant <value = int64 {3}> ()  e = Equal (n, k)  y = If (c) <then_branch = t () "
            "=> (float[1, 4] a) { a = If (e) <then_branch = tt () => (float[1, 4] b) { b = Abs (x) "
            "}, else_branch = ee () => (float[1, 4] d) { d = Neg (x) }> }, else_branch = f () => "
            "(float[1, 4] h) { h = Exp (x) }>",
            {"n": 0, "c": False},
            ("Equal e", "If a", "Abs b", "Neg d"),
            ["c=True", "c=True, n=3"],
            (),
        ),
        # A decision by constants in a body is open until the body has run.
        (
            "y = If (c) <then_branch = t () => (float[1, 4] a) { k = Constant <value = int64 {1}> "
            "()  e = Cast <to = 9> (k)  b = Abs (x)  d = Neg (x)  a = Where (e, b, d) }, "
            "else_branch = f () => (float[1, 4] h) { h = Exp (x) }>",
            {"n": 0, "c": False},
            ("Cast e", "Abs b", "Neg d", "Where a"),
            ["c=True"],
            (),
        ),
        # The initial value of a Loop counts if the body reads it, or does not run.
        (
            "h = Exp (x)  y = Loop (n, , h) <body = b (int64 i, bool m, float[1, 4] s) => (bool q, "
            "float[1, 4] r) { q = Identity (m)  r = Abs (x) }>",
            {"n": 1, "c": True},
            ("Exp h",),
            [],
            ("Exp h",),
        ),
        (
            "h = Exp (x)  y = Loop (n, , h) <body = b (int64 i, bool m, float[1, 4] s) => (bool q, "
            "float[1, 4] r) { q = Identity (m)  r = Abs (x) }>",
            {"n": 0, "c": True},
            ("Identity q", "Abs r"),
            ["n=2"],
            (),
        ),
        # 0 ends the process.
        (
            "k = Constant <value = int64 {1}> ()  e = Equal (n, k)  d = Div (k, n)  "
            "f = Cast <to = 1> (d)  h = Mul (x, f)  b = Neg (x)  y = Where (e, h, b)",
            {"n": 1, "c": True},
            ("Neg b",),
            ["n=2"],
            (),
        ),
        # The value is changed before it is compared.
        (
            "k = Constant <value = int64 {10}> ()  m = Mul (n, k)  o = Sub (k, m)  "
            "l = Constant <value = int64 {-40}> ()  e = Equal (o, l)  h = Abs (x)  "
            "y = Where (e, h, x)",
            {"n": 0, "c": False},
            ("Abs h",),
            ["n=5"],
            (),
        ),
        # Two conditions at once.
        (
            "k = Constant <value = int64 {10}> ()  g = Greater (n, k)  b = And (g, c)  "
            "h = Abs (x)  y = Where (b, h, x)",
            {"n": 0, "c": True},
            ("Abs h",),
            ["n=11"],
            (),
        ),
        # A body that ran once: what it carries to the next iteration counts in the second only.
        (
            "y, z = Loop (n, , x) <body = b (int64 i, bool m, float[1, 4] s) => (bool q, "
            "float[1, 4] r, float[1, 4] o) { q = Identity (m)  o = Abs (s)  r = Exp (x) }>",
            {"n": 1, "c": True},
            (),
            [],
            (),
        ),
        (
            "f, z = Loop (n, , x) <body = b (int64 i, bool m, float[1, 4] s) => (bool q, float[1, "
            "4] r, float[1, 4] o) { q = Identity (m)  o = Abs (s)  [next] r = Exp (x) }>  "
            "a = Constant <value = int64[1] {0}> ()  y = ReduceSum <keepdims = 0> (z, a)",
            {"n": 1, "c": True},
            ("next",),
            ["n=2"],
            (),
        ),
        # A constant side is no node; it may be wrong all the same.
        (
            "k = Constant <value = float {9e9}> ()  y = Where (c, x, k)",
            {"n": 0, "c": True},
            (),
            ["c=False"],
            (),
        ),
        # Nothing is known to turn it: no set, and its node is named.
        (
            "f = Cast <to = 1> (n)  g = Sin (f)  k = Constant <value = float {2.0}> ()  "
            "o = Greater (g, k)  h = Abs (x)  y = Where (o, h, x)",
            {"n": 0, "c": True},
            ("Abs h",),
            [],
            ("Abs h",),
        ),
        # The source does not run on the only value that would.
        (
            "k = Constant <value = int64 {9}> ()  e = Equal (n, k)  a = Abs (x)  "
            "t = Constant <value = float[1, 4] {1.0, 2.0, 3.0, 4.0}> ()  "
            "w = Where (e, a, x)  z = Gather <axis = 1> (t, n)  y = Add (w, z)",
            {"n": 0, "c": True},
            ("Abs a",),
            [],
            ("Abs a",),
        ),
        # Local functions are looked into.
        (
            'y = my.pick (x, c) } <domain: "my", opset_import: ["" : 17]> pick (a, f) => (r) { '
            "h = Exp (a)  [inside] n = Neg (a)  r = Where (f, h, n)",
            {"n": 0, "c": True},
            ("inside__1",),
            ["c=False"],
            (),
        ),
        # A Scan decides for each row.
        (
            "z = Constant <value = float[1] {0.0}> ()  t = Transpose (x)  "
            "f, r = Scan (z, t) <num_scan_inputs = 1, body = b (float[1] s, float[1] e) => "
            "(float[1] u, float[1] o) { u = Add (s, e)  m = Neg (u)  o = Where (c, u, m) }>  "
            "y = Transpose (r)",
            {"n": 0, "c": True},
            ("Neg m",),
            ["c=False"],
            (),
        ),
    ],
)
def test_input_sets_are_few(
    tmp_path: Path,
    body: str,
    values: dict[str, int],
    first: tuple[str, ...],
    labels: list[str],
    last: tuple[str, ...],
) -> None:
    text = f"g (float[1, 4] x, int64 n, bool c) => (float[1, 4] y) {{ {body} }}"
    feeds: Feeds = {"x": X, "n": np.array(values["n"]), "c": np.array(values["c"], np.bool_)}
    before, found, after = completed(save(tmp_path, text), feeds)
    assert (before.unreached, found, after.unreached) == (first, labels, last)


DECODER = """g (int64[1, 1] ids, float16[1, past, 64] key, bool use_cache_branch)
    => (float16[1, s, 64] logits, float16[1, t, 64] present) {
  logits, present = If (use_cache_branch) <
    then_branch = with_past () => (float16[1, s, 64] l1, float16[1, t, 64] p1) {
      [cached_embed] e = Gather (table, ids)  [cached_key] n = MatMul (e, weight)
      p1 = Concat <axis = 1> (key, n)
      z = Constant <value = float {0.0}> ()  f = Cast <to = 1> (p1)  on = Greater (f, z)
      m = Where (on, f, z)  [cached_score] r = ReduceMax <keepdims = 1, axes = [1]> (m)
      c = CastLike (r, e)  l1 = Add (e, c)
    },
    else_branch = no_past () => (float16[1, s, 64] l2, float16[1, t, 64] p2) {
      [first_embed] e = Gather (table, ids)  [first_key] p2 = MatMul (e, weight)
      l2 = Add (e, p2)
    }
  >
}"""


@pytest.mark.parametrize("weights", ["inside", "external", "elsewhere"])
def test_a_merged_decoder_runs_both_of_its_bodies(tmp_path: Path, weights: str) -> None:
    """As Optimum merges it, in float16: one If, whose bodies share the weights around them."""
    made = onnx_text.proto(DECODER, opsets='"" : 17')
    table = np.random.default_rng(0).standard_normal((64, 64)).astype(np.float16)
    made.graph.initializer.extend(numpy_helper.from_array(table, n) for n in ("table", "weight"))
    data = tmp_path / "data" if weights == "elsewhere" else tmp_path
    data.mkdir(exist_ok=True)
    outside = {"inside": 0, "external": 2, "elsewhere": 1}[weights]
    for tensor in made.graph.initializer[:outside]:
        external_data_helper.set_external_data(tensor, location="w")
    external_data_helper.write_external_data_tensors(made, str(data))
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    source = ModelSource(name="m", path=tmp_path / "m.onnx", external_data_dir=data)
    feeds: Feeds = {
        "ids": np.array([[3]]),
        "key": np.zeros((1, 2, 64), np.float16),
        "use_cache_branch": np.array(False),
    }
    first, labels, every = completed(source, feeds)
    assert [name for name in first.unreached if name.startswith("cached")] == [
        "cached_embed",
        "cached_key",
        "cached_score",
    ]
    assert first.words() == "30 % of 13 nodes exercised"
    assert labels == ["use_cache_branch=True"]
    assert every.words() == "100 % of 13 nodes exercised"


@pytest.mark.needs("links")
def test_a_limit_behind_a_link_is_found(tmp_path: Path) -> None:
    """Links of the model and of its data into one folder, as in the cache of Hugging Face."""
    (tmp_path / "blobs").mkdir()
    text = f"g (float[1, 4] x, float v) => (float[1, 4] y) {{ {BOTH}c = Greater (v, limit)  "
    model = onnx_text.proto(f"{text}y = Where (c, k, h) }}", opsets='"" : 17')
    model.graph.initializer.append(numpy_helper.from_array(np.array(40, np.float32), "limit"))
    external_data_helper.convert_model_to_external_data(model, location="w", size_threshold=0)
    onnx.save(model, tmp_path / "blobs" / "m.onnx")
    (tmp_path / "snapshot").mkdir()
    for name in ("m.onnx", "w"):
        (tmp_path / "snapshot" / name).symlink_to(tmp_path / "blobs" / name)
    source = ModelSource(name="m", path=tmp_path / "snapshot" / "m.onnx")
    _, labels, every = completed(source, {"x": X, "v": np.array(1, np.float32)})
    assert labels == ["v=45.0"] and every.unreached == ()


def test_a_mask_of_ones_is_tried_with_some_zeros(tmp_path: Path) -> None:
    mask = "m = Cast <to = 9> (mask)  h = Exp (x)  y = Where (m, x, h)"
    source = save(tmp_path, f"g (float[1, 4] x, int64[1, 4] mask) => (float[1, 4] y) {{ {mask} }}")
    feeds: Feeds = {"x": X, "mask": np.ones((1, 4), np.int64)}
    ((label, further),) = branches.further(
        source,
        graph_inputs.specs(onnx.load(source.path)),
        feeds,
        branches.measure(source, [feeds]),
    )
    assert label == "mask=0 in part"
    assert further["mask"].tolist() == [[1, 1, 0, 0]]
    assert further["x"] is X


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("y = Abs (x)", "100 % of 1 node exercised"),
        # A decision by constants and sizes is the same for all inputs; the other side is dead.
        (
            "k = Constant <value = int64[4] {1, 1, 1, 1}> ()  b = Cast <to = 9> (k)  h = Exp (x)  "
            "y = Where (b, x, h)",
            "100 % of 1 node exercised",
        ),
        (
            "s = Shape (x)  n = Constant <value = int64[2] {-1, -1}> ()  e = Equal (s, n)  "
            "o = Constant <value = int64[2] {1, 1}> ()  d = Where (e, o, s)  y = Expand (x, d)",
            "100 % of 1 node exercised",
        ),
        (
            "n = Constant <value = int64 {2}> ()  y = Loop (n, , x) <body = b (int64 i, bool m, "
            "float[1, 4] s) => (bool a, float[1, 4] r) { a = Identity (m)  o = Constant <value = "
            "int64 {5}> ()  e = Equal (i, o)  h = Exp (s)  r = Where (e, h, s) }>",
            "100 % of 2 nodes exercised",
        ),
    ],
)
def test_what_no_input_decides_needs_no_input_set(tmp_path: Path, body: str, words: str) -> None:
    source = save(tmp_path, f"g (float[1, 4] x) => (float[1, 4] y) {{ {body} }}")
    assert not branches.decides(onnx.load(source.path), source)
    first, labels, _ = completed(source, {"x": X})
    assert (first.words(), labels) == (words, [])


def test_a_comparison_of_strings_is_left_alone(tmp_path: Path) -> None:
    model = (
        f"g (float[1, 4] x, string[1] v) => (float[1, 4] y) {{ {BOTH}"
        'n = Constant <value_string = "en"> ()  c = Equal (v, n)  y = Where (c, k, h) }'
    )
    feeds = {"x": X, "v": np.array(["de"], object)}
    onnx.save(onnx_text.proto(model, opsets='"" : 19'), tmp_path / "m.onnx")
    source = ModelSource(name="m", path=tmp_path / "m.onnx")
    first, labels, every = completed(source, feeds)
    assert labels == [] and every.unreached == first.unreached


def test_an_open_batch_is_tried_at_1(tmp_path: Path) -> None:
    """Exporters guard squeezes by an If; it is dead code where the size is fixed."""
    body = (
        "s = Shape <start = 0, end = 1> (x)  o = Constant <value = int64[1] {1}> ()  "
        "e = Equal (s, o)  y = If (e) <then_branch = t () => (float[b, 4] a) { a = Abs (x) }, "
        "else_branch = f () => (float[b, 4] c) { c = Neg (x) }>"
    )
    source = save(tmp_path, f"g (float[b, 4] x) => (float[b, 4] y) {{ {body} }}")
    fixed = ModelSource(name="m", path=source.path, dimensions={"b": 2})
    model = onnx.load(source.path)
    assert branches.decides(model, source)
    assert not branches.decides(model, fixed)
    feeds: Feeds = {"x": np.ones((2, 4), np.float32)}
    assert completed(fixed, feeds)[1] == []
    coverage = branches.measure(source, [feeds])
    assert coverage.unreached == ()
    ((label, further),) = branches.further(source, graph_inputs.specs(model), feeds, coverage)
    assert (label, further["x"].shape) == ("b=1", (1, 4))


@pytest.mark.parametrize("opset", [9, 11, 13, 22])
@pytest.mark.parametrize("branch", ["then_branch", "else_branch"])
def test_branches_may_return_sequences_and_take_empty_sides(
    tmp_path: Path, opset: int, branch: str
) -> None:
    """Nothing is selected of a tensor without elements."""
    other = "else_branch" if branch == "then_branch" else "then_branch"
    sequence = opset >= 11
    made = onnx_text.proto(
        f"""g (float[1, 4] x, float[n, 4] empty, bool[n, 4] mask, bool c) => (float[n, 4] y) {{
          q, w = If (c) <
            {branch} = t () => (float[1, 4] a, float[n, 4] v) {{
              {"a = SequenceConstruct (x)" if sequence else "a = Identity (x)"}
              [side] e = Exp (empty)  v = Where (mask, e, empty)
            }},
            {other} = f () => (float[1, 4] b, float[n, 4] u) {{
              {"b = SequenceConstruct (x)" if sequence else "b = Identity (x)"}
              u = Identity (empty)
            }}
          >
          y = Abs (w)
        }}""",
        opsets=f'"" : {opset}',
    )
    for graph in (made.graph.node[0].attribute[0].g, made.graph.node[0].attribute[1].g):
        if sequence:
            kind = onnx.helper.make_tensor_sequence_value_info("", TensorProto.FLOAT, [1, 4]).type
            graph.output[0].type.CopyFrom(kind)
    made.graph.output.append(
        onnx.helper.make_tensor_sequence_value_info("q", TensorProto.FLOAT, [1, 4])
        if sequence
        else onnx.helper.make_tensor_value_info("q", TensorProto.FLOAT, [1, 4])
    )
    onnx.save(made, tmp_path / "m.onnx")
    source = ModelSource(name="m", path=tmp_path / "m.onnx")
    feeds: Feeds = {
        "x": X,
        "empty": np.zeros((0, 4), np.float32),
        "mask": np.zeros((0, 4), np.bool_),
        "c": np.array(branch == "then_branch"),
    }
    coverage = branches.measure(source, [feeds])
    assert "side" in coverage.unreached
    assert branches.further(source, (), feeds, coverage) == []
    full = feeds | {"empty": np.ones((1, 4), np.float32), "mask": np.ones((1, 4), np.bool_)}
    assert "side" not in branches.measure(source, [feeds, full]).unreached


def test_what_does_not_run_is_not_measured(tmp_path: Path) -> None:
    source = save(tmp_path, PICK)
    with pytest.raises(Exception, match="INVALID_ARGUMENT"):
        branches.measure(source, [{"x": X, "c": np.ones((1, 5), np.bool_)}])
