"""Outputs whose size follows from an input's value: built, and fed values that give that size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
import yaml
from onnx import helper, numpy_helper

from epctx import api, runtime
from epctx.engine.report import GroupReport
from epctx.errors import VerificationError
from tests.kit import onnx_text

FITTING = {
    "constant_of_shape": "(int64[3] n) => (float[4,3,2] y) { y = ConstantOfShape(n) }",
    "pad": "(float[2,3] x, int64[4] n) => (float[4,7] y) { y = Pad(x, n) }",
    "crop": "(float[3,8,9] x, int64[2] n) => (float[3,4,5] y)"
    " { y = CenterCropPad <axes = [1, 2]> (x, n) }",
    "unsqueeze": "(float[2,3] x, int64[2] n) => (float[1,2,1,3] y) { y = Unsqueeze(x, n) }",
    "squeeze": "(float[1,2,1,3] x, int64[2] n) => (float[2,3] y) { y = Squeeze(x, n) }",
    "loop": "(int64 n, bool c, float[2] x) => (float[2] y, float[5,2] z) { y, z = Loop(n, c, x)"
    " <body = b (int64 i, bool k, float[2] s) => (bool l, float[2] t, float[2] o)"
    " { l = Identity(k) t = Neg(s) o = Relu(t) }> }",
    "tile": "(float[2,3] x, int64[2] n) => (float[4,9] y) { y = Tile(x, n) }",
    "expand": "(float[1,3] x, int64[2] n) => (float[4,3] y) { y = Expand(x, n) }",
    "cast": "(float[4,3] x, int32[3] n) => (float[2,2,3] y)"
    " { m = Cast <to = 7> (n) y = Reshape(x, m) }",
    "resize": "(float[1,1,4,4] x, float[4] n) => (float[1,1,8,6] y)"
    ' { y = Resize <mode = "nearest"> (x, , n) }',
    "largest": "(float[2,9] x, int64[1] n) => (float[2,4] y, int64[2,4] i) { y, i = TopK(x, n) }",
}
OTHER = {
    "computed": (
        "(int64[2] n, float[2] x) => (float[4,4] y, float[2] z) <int64[2] two = {2,2}>"
        " { m = Mul(n, two) y = ConstantOfShape(m) z = Relu(x) }",
        "input `n` ask for another size of 'y'",
    ),
    "slice": (
        "(float[9] x, int64[1] n, int64[1] m) => (float[4] y) { y = Slice(x, n, m) }",
        "inputs `n`, `m` ask for another size of 'y'",
    ),
    "nonzero": (
        "(float[4] x) => (int64[1,2] y) { y = NonZero(x) }",
        "input `x` ask for another size of 'y': [1, 4], declared is [1, 2]",
    ),
    "branch": (
        "(bool n, float[2,3] x) => (float[6] y) { y = If(n) <"
        "then_branch = t () => (float[6] o) <int64[1] s = {-1}> { o = Reshape(x, s) },"
        "else_branch = e () => (float[A] w) <int64[1] a = {0}, int64[1] b = {1}>"
        " { v = Slice(x, a, b) w = Squeeze(v, a) }> }",
        "input `n` ask for another size of 'y'",
    ),
}

DEFAULTS: Mapping[str, Sequence[Sequence[float]]] = {
    "(float[2,3] x, int64[2] s) => (float[1,6] y) { y = Reshape(x, s) }": ([1, 6], [1, -1], [3, 2]),
    "(float[2,4] x, int64[2] s) => (float[2,1] y, float[2,3] z)"
    " { a, b = Split <axis = 1> (x, s) y = Relu(a) z = Relu(b) }": ([1, 3], [2, 2]),
    "(float[1,3,1] x, int64[1] s) => (float[3,1] y) { y = Squeeze(x, s) }": ([0], [-3], [2]),
    "(float[2,3] x, float[3] s) => (float[2,3] y) <int64 n = {3}, bool c = {1}> { y = Loop(n, c, x)"
    " <body = b (int64 i, bool k, float[2,3] v) => (bool l, float[2,3] u)"
    " { l = Identity(k) u = Add(v, s) }> }": ([1, 2, 3], [0, 0, 1]),
}
"""Models with an initializer `s` that is an input, too: its default, and other values to feed."""


def _manifest(folder: Path, name: str, groups: Mapping[str, Mapping[str, object]]) -> Path:
    manifest = {
        "schema_version": 1,
        "name": name,
        "models": {model: {"path": f"{model}.onnx"} for model in groups},
        "execution_providers": {"ref": {"provider": "ReferenceExecutionProvider"}},
        "model_groups": groups,
    }
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(manifest), "utf-8")
    return path


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, GroupReport]:
    folder = tmp_path_factory.mktemp("sizes")
    bodies = FITTING | {name: body for name, (body, _) in OTHER.items()}
    for name, body in bodies.items():
        onnx.save(onnx_text.proto(f"g {body}", opsets='"" : 18'), folder / f"{name}.onnx")
    own = {name: {"models": [name], "execution_providers": ["ref"]} for name in bodies}
    path = _manifest(folder, "sizes", own)
    report = api.build(path, out=folder / "dist")
    return {group.group: group for group in report.groups}


@pytest.mark.parametrize("name", FITTING)
def test_values_that_give_the_declared_size_are_generated(
    name: str, groups: Mapping[str, GroupReport]
) -> None:
    verified = groups[name].verify
    assert verified is not None and verified.numbers
    assert all(each.passed for each in verified.numbers)


@pytest.mark.parametrize(("name", "told"), [(name, told) for name, (_, told) in OTHER.items()])
def test_where_values_ask_for_another_size_numbers_are_not_checkable(
    name: str, told: str, groups: Mapping[str, GroupReport]
) -> None:
    verified = groups[name].verify
    assert verified is not None
    (found,) = (each for each in verified.findings if "another size" in each.message)
    assert found.outcome == "not checkable" and told in found.message
    assert "`verify: {inputs: {files: [inputs.npz]}}`" in (found.remedy or "")


def test_a_rank_that_shows_when_shapes_are_folded_is_written_with_a_note(tmp_path: Path) -> None:
    body = (
        "(float[1,50] q, float[1,200,50] x) => (float[10,20,n] y)"
        " <int64[1] rest = {-1}, int64 one = {1}> { s = Shape(q) g = Gather(s, one)"
        " u = Unsqueeze <axes = [0]> (g) c = Concat <axis = 0> (rest, u) y = Reshape(x, c) }"
    )
    onnx.save(onnx_text.proto(f"g {body}", opsets='"" : 11'), tmp_path / "m.onnx")
    path = _manifest(tmp_path, "m", {"m": {"models": ["m"], "execution_providers": ["ref"]}})
    (group,) = api.build(path, out=tmp_path / "dist").groups
    assert group.verify is not None and all(each.passed for each in group.verify.numbers)
    assert group.models[0].notes[-1] == (
        "output 'y' is declared as [10,20,n], but its shape is [200,50]; epctx writes that"
    )


def test_given_values_that_ask_for_another_size_fail(tmp_path: Path) -> None:
    """The file is asked for by the manifest: the declaration is wrong, or the file is."""
    body, _ = OTHER["slice"]
    onnx.save(onnx_text.proto(f"g {body}", opsets='"" : 18'), tmp_path / "m.onnx")
    for name, end in (("right", 4), ("wrong", 5)):
        one, more = np.array([0], np.int64), np.array([end], np.int64)
        np.savez(tmp_path / f"{name}.npz", x=np.arange(9, dtype=np.float32), n=one, m=more)
        group = {
            "models": ["m"],
            "execution_providers": ["ref"],
            "verify": {"inputs": {"files": [f"{name}.npz"]}},
        }
        path = _manifest(tmp_path, name, {"m": group})
        if name == "right":
            (built,) = api.build(path, out=tmp_path / "dist").groups
            assert built.verify is not None and all(n.passed for n in built.verify.numbers)
        else:
            with pytest.raises(VerificationError, match=r"its shape is \[5\], not \[4\]"):
                api.build(path, out=tmp_path / "dist")


@pytest.mark.parametrize(("body", "values"), DEFAULTS.items())
def test_an_initializer_that_gives_a_size_may_be_fed(
    body: str, values: Sequence[Sequence[float]], tmp_path: Path
) -> None:
    opset = 11 if "Reshape" in body else 18  # onnx finds the rank of later ones without a value
    model = onnx_text.proto(f"g {body}", opsets=f'"" : {opset}')
    (kind,) = (v.type.tensor_type.elem_type for v in model.graph.input if v.name == "s")
    feeds = [np.array(each, helper.tensor_dtype_to_np_dtype(kind)) for each in values]
    model.graph.initializer.append(numpy_helper.from_array(feeds[0], "s"))
    onnx.save(model, tmp_path / "m.onnx")
    path = _manifest(tmp_path, "m", {"m": {"models": ["m"], "execution_providers": ["ref"]}})
    (group,) = api.build(path, out=tmp_path / "dist").groups
    assert not group.models[0].declined
    (built,) = tmp_path.rglob("m_ctx.onnx")
    stock, own = onnx_text.session(model), runtime.InferenceSession(built)
    x = np.ones(stock.get_inputs()[0].shape, np.float32)
    for fed in ({}, *({"s": each} for each in feeds)):
        for right, found in zip(*(s.run(None, {"x": x, **fed}) for s in (stock, own)), strict=True):
            np.testing.assert_array_equal(found, right, strict=True)
