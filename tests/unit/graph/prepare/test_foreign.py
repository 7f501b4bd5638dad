"""Types and shapes of operators that onnx does not know, asked of ONNX Runtime."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from epctx.graph.prepare.inference import infer
from epctx.manifest import ModelSource
from epctx.stages import load
from tests.kit import onnx_text

OPSETS = '"" : 17, "com.microsoft" : 1, "ai.onnx.ml" : 3'
_proto = partial(onnx_text.proto, opsets=OPSETS, ir_version=8)
Shapes = Mapping[str, Sequence[int | str | None] | None]


def _loaded(folder: Path, model: onnx.ModelProto) -> tuple[Shapes, tuple[str, ...]]:
    """The shapes of what nodes make, and the notes; of a value without a type there is none."""
    onnx.save(model, folder / "m.onnx")
    loaded = load.run(ModelSource(name="m", path=folder / "m.onnx"))
    return {
        str(value.name): None
        if value.shape is None
        else [d.value if isinstance(d, ir.SymbolicDim) else d for d in value.shape]
        for node in loaded.model.graph
        for value in node.outputs
        if isinstance(value.type, ir.TensorType)
    }, loaded.corrected(loaded.model.graph)


TREE = (
    "p = ai.onnx.ml.Scaler <offset = [0.0, 0.0], scale = [1.0, 1.0]> (x)"
    " l, s = ai.onnx.ml.TreeEnsembleClassifier <class_ids = [0, 1], class_nodeids = [1, 2],"
    " class_treeids = [0, 0], class_weights = [1.0, 1.0], classlabels_int64s = [0, 1],"
    " nodes_falsenodeids = [2, 0, 0], nodes_featureids = [0, 0, 0],"
    ' nodes_modes = ["BRANCH_LEQ", "LEAF", "LEAF"], nodes_nodeids = [0, 1, 2],'
    " nodes_treeids = [0, 0, 0], nodes_truenodeids = [1, 0, 0], nodes_values = [0.5, 0.0, 0.0],"
    ' post_transform = "NONE"> (p)'
)
MODELS: Mapping[str, tuple[str, Shapes]] = {
    "by ONNX Runtime's inference": (
        "g (float[2,3] x) => (float[2,3] z) { y = com.microsoft.QuickGelu(x) z = Relu(y) }",
        {"y": [2, 3]},
    ),
    "of quantizers for types that ONNX's own lack": (
        "g (float[2,3] x) => (float[2,3] y) <float s = {0.5}, uint16 z = {3}> {"
        " q = com.microsoft.QuantizeLinear (x, s, z)"
        " y = com.microsoft.DequantizeLinear (q, s, z) }",
        {"q": [2, 3], "y": [2, 3]},
    ),
    "of a scalar, which its inference does not tell": (
        "g (float[2] x) => (float[2] z) { r = ReduceSum <keepdims = 0> (x)"
        " y = com.microsoft.QuickGelu(r) z = Add(x, y) }",
        {"y": []},
    ),
    "by a run: a tree, with its batch open": (
        f"g (float[N,2] x) => (int64[N] l, float[A] z) {{ {TREE} n = ReduceMax <keepdims = 0,"
        " axes = [1]> (s) z = Relu(n) }",
        {"l": ["N"], "s": ["N", 2], "n": ["N"]},
    ),
    "of what a branch makes": (
        "g (bool c, float[2,3] x) => (float[2,3] z) { y = If(c) <"
        "then_branch = t () => (o) { o = com.microsoft.QuickGelu(x) },"
        "else_branch = e () => (w) { w = com.microsoft.FastGelu(x) }> z = Relu(y) }",
        {"y": [2, 3]},
    ),
}


@pytest.mark.parametrize(("body", "shapes"), MODELS.values(), ids=MODELS.keys())
def test_what_onnx_does_not_know_is_known(body: str, shapes: Shapes, tmp_path: Path) -> None:
    found, _ = _loaded(tmp_path, _proto(body))
    assert {name: found.get(name) for name in shapes} == shapes


def test_of_a_normalizer_by_l2_no_shape_is_told(tmp_path: Path) -> None:
    """ONNX Runtime 1.32.0 would compute in place, and read what it has written."""
    text = (
        "g (float[2,4] x) => (float[2,4] y) "
        '{ t = Neg (x) n = ai.onnx.ml.Normalizer <norm = "L2"> (t) y = Neg (n) }'
    )
    model = _proto(text)
    found, _ = _loaded(tmp_path, model)
    assert found["t"] == [2, 4] and "n" not in found
    x = np.array([[1, 2, 3, 4], [-1, 0, 1, 5]], np.float32)
    right = x / np.linalg.norm(x, axis=1, keepdims=True)
    (y,) = onnx_text.session(model).run(None, {"x": x})
    assert np.allclose(y, right)
    known = onnx.helper.make_tensor_value_info("n", onnx.TensorProto.FLOAT, [2, 4])
    model.graph.value_info.append(known)
    (wrong,) = onnx_text.session(model).run(None, {"x": x})
    assert not np.allclose(wrong, right), "ONNX Runtime is mended: its shape may be told"


ATTENTION = (
    "g (float[2,4,8] q, float[2,6,8] k) => (float[2,4,8] y, float[2,{}] p, float[2,2,6,4] v)"
    " {{ y, p, v = com.microsoft.MultiHeadAttention <num_heads = 2> (q, k, k) }}"
)


def test_a_wrong_shape_that_a_run_refutes_is_corrected_with_a_note(tmp_path: Path) -> None:
    found, notes = _loaded(tmp_path, _proto(ATTENTION.format("2,4,6")))
    assert found["p"] == found["v"] == [2, 2, 6, 4]
    assert notes[-1:] == (
        "output 'p' is declared as [2,2,4,6], but its shape is [2,2,6,4]; epctx writes that",
    )
    found, notes = _loaded(tmp_path, _proto(ATTENTION.format("2,6,4")))
    assert found["p"] == [2, 2, 6, 4]
    assert not any("declared as" in note for note in notes)


def test_a_size_that_follows_from_the_batch_is_open_whatever_is_declared(tmp_path: Path) -> None:
    body = f"g (float[N,2] x) => (int64[1] z) {{ {TREE} z = Identity(l) }}"
    model = _proto(body)
    found, notes = _loaded(tmp_path, model)
    assert found["z"] == ["N"] and "'z' is declared as [1]" in notes[-1]
    model.graph.input[0].type.tensor_type.shape.dim[0].Clear()
    found, _ = _loaded(tmp_path, model)
    assert found["z"] == [None]


def test_what_cannot_be_run_is_as_declared(tmp_path: Path) -> None:
    """The tree reads three features, and one of the runs feeds it two."""
    tree = TREE.replace("featureids = [0, 0, 0]", "featureids = [2, 0, 0]").partition(" l, s = ")[2]
    body = f"g (float[N,M] p) => (int64[N] l, float[N,2] s) {{ l, s = {tree} }}"
    found, _ = _loaded(tmp_path, _proto(body))
    assert found == {"l": ["N"], "s": ["N", 2]}


def test_outputs_of_maps_are_no_obstacle(tmp_path: Path) -> None:
    model = _proto(f"g (float[N,2] x) => (float z) {{ {TREE} z = ai.onnx.ml.ZipMap (s) }}")
    model.graph.node[-1].attribute.append(onnx.helper.make_attribute("classlabels_int64s", [0, 1]))
    kind = model.graph.output[0].type.sequence_type.elem_type.map_type
    kind.key_type = onnx.TensorProto.INT64
    kind.value_type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    found, notes = _loaded(tmp_path, model)
    assert found["s"] == ["N", 2] and notes == ()


def test_weights_are_read_where_they_are(tmp_path: Path) -> None:
    """The operator takes constants only: without its weights ONNX Runtime does not load it."""
    model = _proto(
        "g (float[1,64] x) => (float[A,B] z) {"
        " y = com.microsoft.MatMulNBits <K = 64, N = 32, bits = 4, block_size = 32> (x, b, s)"
        " z = Relu(y) }"
    )
    weights: Mapping[str, np.ndarray] = {
        "b": np.zeros((32, 2, 16), np.uint8),
        "s": np.ones(64, np.float32),
    }
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    onnx.save(model, tmp_path / "source.onnx", save_as_external_data=True, size_threshold=1)
    found, _ = _loaded(tmp_path, onnx.load(tmp_path / "source.onnx", load_external_data=False))
    assert found == {"y": [1, 32], "z": [1, 32]}


def test_an_operator_that_onnx_runtime_lacks_stays_as_declared() -> None:
    body = "g (float[2] x) => (float[2] z) <float[5] y> { y = f.Op(x) z = Relu(x) }"
    model = onnx_text.proto(body, opsets='"" : 17, "f" : 1')
    asked: list[onnx.ModelProto] = []

    def refuse(probe: onnx.ModelProto) -> None:
        asked.append(probe)

    inferred = infer(model, ask=refuse)
    (y,) = (value for value in inferred.graph.value_info if value.name == "y")
    assert len(asked) == 1 and y.type.tensor_type.shape.dim[0].dim_value == 5
