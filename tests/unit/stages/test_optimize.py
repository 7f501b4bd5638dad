"""The stage: levels, explicit lists, records, digests, passes of third parties."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from epctx.errors import CompileError, ManifestError, StorageError
from epctx.graph.passes import registry
from epctx.graph.serde import canonical
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import OptimizeSettings
from epctx.stages import optimize
from tests.kit import onnx_text, optimizing

TEXT = (
    "g (float[N,3] x) => (float[N,3] y) <int64[2] s = {1,3}, float z = {0.5}> {"
    " f = ConstantOfShape<value = float[1] {0.25}>(s) h = Add(z, z) m = Mul(f, h)"
    " a = Identity(x) b = Add(a, m) c = Add(a, m) y = Mul(b, c) }"
)
FEEDS = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}


def test_basic_folds_what_is_exact_and_leaves_float_arithmetic() -> None:
    result = optimizing.check(onnx_text.model(TEXT), FEEDS, level="basic")
    assert optimizing.ops(result) == {"Add": 2, "Mul": 2}
    assert optimizing.changes(result) == {
        "fold-constants": {"ConstantOfShape": 1},
        "simplify": {"identity": 1},
        "merge-subexpressions": {"nodes": 1},
    }
    assert [record.name for record in result.passes] == [
        "unique-names",
        "lift-constants",
        "fold-constants",
        "simplify",
        "resolve-branches",
        "remove-dead-code",
        "infer-shapes",
        "merge-initializers",
        "merge-subexpressions",
        "remove-unused-opsets",
    ]


def test_an_explicit_list_runs_these_passes_in_this_order() -> None:
    passes = ("merge-subexpressions", "simplify")
    result = optimizing.check(onnx_text.model(TEXT), FEEDS, *passes)
    assert [record.name for record in result.passes] == ["unique-names", *passes]
    assert optimizing.ops(result)["ConstantOfShape"] == 1


def test_passes_that_feed_each_other_run_until_nothing_changes() -> None:
    """The branch is known after a fold, the shape in it after the branch, the fold after that."""
    model = onnx_text.model(
        "g (float[2,3] x) => (float[N,M] y) <int64 k = {0}, int64 two = {2}> {"
        " s = Shape(x) d = Gather(s, k) c = Equal(d, two) y = If(c) <"
        " then_branch = t () => (float[N,M] u) { p = Shape(x) q = Cast<to = 1>(p)"
        "   r = Cast<to = 7>(q) u = Reshape(x, r) },"
        " else_branch = e () => (float[N,M] v) { v = Cos(x) }> }"
    )
    result = optimizing.check(model, FEEDS)
    assert optimizing.ops(result) == {"Identity": 1}
    names = [record.name for record in result.passes]
    assert len(names) == len(set(names)), "one record for each pass, however often it ran"


def test_an_unknown_pass_is_an_error_before_anything_runs(tmp_path: Path) -> None:
    loaded = optimizing.loaded(onnx_text.model(TEXT), tmp_path)
    settings = OptimizeSettings(level="explicit", passes=("simplify", "fold-const"))
    with pytest.raises(ManifestError, match="fold-constants"):
        optimize.run(loaded, settings, tmp_path)
    assert len(loaded.model.graph) == 7


def test_weights_that_nodes_make_become_mapped_initializers(tmp_path: Path) -> None:
    """What real-eps.md section 14 asks for: no node makes a weight any more."""
    model = onnx_text.model(
        "g (float[1,512] x) => (float[1,512] y) <int64[2] s = {512,512}, int64[1] n = {512}> {"
        " w = ConstantOfShape<value = float[1] {0.02}>(s) t = Transpose(w) b = ConstantOfShape(n)"
        " u = Expand(b, s) y = Gemm(x, t, b) v = Identity(u) }"
    )
    result = optimizing.optimized(model, "basic", scratch=tmp_path)
    assert optimizing.ops(result) == {"Gemm": 1}
    weight = result.model.graph[0].inputs[1]
    assert weight is not None
    assert isinstance(weight.const_value, MappedTensor)
    assert weight.const_value.file.path == tmp_path / "folded.data"
    assert (tmp_path / "folded.data").stat().st_size == 4 << 18


def test_what_optimizes_away_does_not_change_the_digest() -> None:
    model = ir.serde.serialize_model(onnx_text.model(TEXT))
    first = optimizing.optimized(model, "basic").digest
    edited = onnx.ModelProto()
    edited.CopyFrom(model)
    edited.doc_string = edited.graph.doc_string = "said"
    edited.producer_name, edited.producer_version = "somebody", "7"
    for node in edited.graph.node:
        node.doc_string = "said"
        node.metadata_props.add(key="where", value="/home/somebody")
    unused = numpy_helper.from_array(np.zeros(5), "unused")
    weights = [unused, *reversed(edited.graph.initializer)]
    del edited.graph.initializer[:]
    edited.graph.initializer.extend(weights)
    for tensor in edited.graph.initializer:
        if tensor.name == "z":  # the other field of the same number
            value = numpy_helper.to_array(tensor)
            tensor.ClearField("float_data")
            tensor.raw_data = value.tobytes()
    edited.opset_import.add(domain="unused.domain", version=3)
    dead = edited.graph.node.add()
    dead.CopyFrom(onnx.helper.make_node("Sin", ["a"], ["nobody"]))
    assert optimizing.optimized(edited, "basic").digest == first
    assert optimizing.optimized(edited, "none").digest != optimizing.optimized(model, "none").digest


def test_what_quantization_annotations_name_stays() -> None:
    model = ir.serde.serialize_model(onnx_text.model(TEXT))
    for name in ("scale", "same"):
        model.graph.initializer.append(numpy_helper.from_array(np.array(0.5, np.float32), name))
    annotation = model.graph.quantization_annotation.add(tensor_name="f")
    annotation.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    result = optimizing.optimized(model, "basic")
    assert "scale" in result.model.graph.initializers
    assert "same" not in result.model.graph.initializers
    written = onnx.ModelProto.FromString(canonical.serialize(result.model))
    (kept,) = written.graph.quantization_annotation
    assert kept.tensor_name == "f"


@pytest.mark.parametrize(
    "edit",
    [("0.25", "0.125"), ("z = {0.5}", "z = {0.25}"), ("y = Mul(b, c)", "y = Div(b, c)")],
)
def test_what_matters_changes_the_digest(edit: tuple[str, str]) -> None:
    one, other = (optimizing.optimized(onnx_text.model(t), "basic").digest
                  for t in (TEXT, TEXT.replace(*edit)))  # fmt: skip
    assert one != other


PLUGIN = """
import onnx_ir as ir

class Plain(ir.passes.InPlacePass):
    def call(self, model):
        model.graph[0].name = "plain"
        return ir.passes.PassResult(model, modified=True)

class Raises(Plain):
    def call(self, model):
        raise RuntimeError("no idea")

class Renames(Plain):
    def call(self, model):
        model.graph.outputs[0].name = "other"
        return ir.passes.PassResult(model, modified=True)

class Counts(Plain):
    def call(self, model):
        from epctx.graph.passes.base import Counted
        return Counted(model, modified=True, changed={"b": 2, "a": 1})
"""


@pytest.fixture
def plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "epctx_plugin", raising=False)
    (tmp_path / "epctx_plugin.py").write_text(PLUGIN, encoding="utf-8")
    info = tmp_path / "epctx_plugin-2.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: epctx_plugin\nVersion: 2.0\n")
    passes = ("Plain", "Raises", "Renames", "Counts")
    lines = "\n".join(f"{name.lower()} = epctx_plugin:{name}" for name in passes)
    (info / "entry_points.txt").write_text(f"[{registry.GROUP}]\n{lines}\n")
    return "epctx_plugin 2.0"


def test_a_third_partys_pass_runs_and_is_recorded(plugin: str) -> None:
    result = optimizing.check(onnx_text.model(TEXT), FEEDS, "plain", "simplify", "counts", "counts")
    assert optimizing.changes(result) == {
        "plain": {"modified": 1},
        "simplify": {"identity": 1},
        "counts": {"a": 2, "b": 4},
    }
    result = optimizing.check(onnx_text.model(TEXT), FEEDS, "plain")
    assert result.model.graph[0].name == "plain"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "raises",
            "optimize pass raises: the pass of epctx_plugin 2.0 failed: RuntimeError: no idea\n"
            "  -> report it to that package, or take the pass out of `optimize`",
        ),
        (
            "renames",
            "optimize pass renames: the pass of epctx_plugin 2.0 changed the names of the graph's"
            " inputs or outputs\n"
            "  -> report it to that package, or take the pass out of `optimize`",
        ),
    ],
)
def test_a_third_partys_pass_that_fails_is_named(plugin: str, name: str, message: str) -> None:
    with pytest.raises(CompileError) as raised:
        optimizing.optimized(onnx_text.model(TEXT), name)
    assert str(raised.value) == message


def test_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    text = TEXT.replace("s = {1,3}", "s = {30000,3}").replace("[N,3]", "[30000,3]")
    with pytest.raises(StorageError, match=r"folded\.data"):
        optimizing.optimized(onnx_text.model(text), "basic", scratch=tmp_path / "missing")


@pytest.mark.parametrize(
    "text",
    [
        # equal initializers make equal nodes
        "g (float[3] x) => (float[3] y) <float[3] a = {1,2,3}, float[3] b = {1,2,3}>"
        " { p = Add(x, a) q = Add(x, b) y = Mul(p, q) }",
        # what nobody uses holds back a rule
        "g (float[2,3] x) => (float[2,3] y) <int64[2] s = {2,0}> { p, q = Split(x, s)"
        " r = Sin(q) y = Neg(p) }",
    ],
)
def test_nothing_is_left_for_a_second_run(text: str) -> None:
    first = optimizing.optimized(onnx_text.model(text), "basic")
    assert optimizing.changes(optimizing.optimized(first.model, "basic")) == {}


@pytest.mark.parametrize(
    "text",
    [
        "g (float[3] x, float[3] z) => (float[3] y, float[3] x) { y = Neg(x) }",
        "g (float[3] x) => (float[3] w, float[3] y) <float[3] w = {1,2,3}, float[3] v = {1,2,3}>"
        " { a = Add(x, v) y = Mul(a, w) }",
        "g (float[3] x) => (float[3] y, float[3] a, float[3] b)"
        " { a = Identity(x) b = Identity(a) y = Neg(b) }",
        "g (float[3] x) => (float[3] y, float[3] a) { a = Sin(x) b = Identity(a) y = Identity(b) }",
    ],
    ids=["an input", "an initializer", "the input under other names", "one value twice"],
)
@pytest.mark.parametrize("level", ["basic", "extended"])
def test_outputs_that_no_node_of_their_own_makes(text: str, level: str) -> None:
    feeds = {"x": np.array([1.5, -2.0, 0.0], np.float32), "z": np.ones(3, np.float32)}
    model = onnx_text.model(text)
    optimizing.check(
        model, {str(v.name): feeds[str(v.name)] for v in model.graph.inputs}, level=level
    )
