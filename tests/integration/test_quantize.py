"""A float model quantized and compiled by QNN, for real: the same bytes, the right numbers.

Of a quantized Reciprocal, which each RMSNorm has that torch exports, QNN 2.7.0 makes wrong numbers.
The numbers are those of QNN's simulator against the quantized model on ONNX Runtime's CPU EP.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from epctx.cache import Cache, locate
from epctx.cache.maintenance import info
from epctx.cli.app import app
from tests.kit import onnx_text

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
MANIFEST = """\
schema_version: 1
name: m
models: {a: {path: a.onnx}}
execution_providers: {qnn: {provider: QNNExecutionProvider, options: {soc_model: "60"}}}
model_groups:
  g:
    models: [a]
    execution_providers: [qnn]
    quantize: {calibration: {files: [calib/*.npz]}, range_floor: -50}
"""
LAYERS, WIDTH = 3, 32


def decoder() -> onnx.ModelProto:
    """Three layers, each an RMSNorm as torch writes it and a product; equal weights of the norms,
    and a mask added to the scores at the end.
    """
    rng = np.random.default_rng(5)
    value = helper.make_tensor_value_info
    constants = {
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "axes": np.array([-1], np.int64),
        **{f"norm{i}": np.ones(WIDTH, np.float32) for i in range(LAYERS)},
        **{
            f"w{i}": rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 5
            for i in range(LAYERS)
        },
    }
    nodes: list[onnx.NodeProto] = []

    def node(op: str, *inputs: str, **attributes: Any) -> str:
        name = f"n{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [name], name=f"node_{name}", **attributes))
        return name

    x = "x"
    for i in range(LAYERS):
        mean = node("ReduceMean", node("Pow", x, "two"), "axes", keepdims=1)
        scale = node("Reciprocal", node("Sqrt", node("Add", mean, "eps")))
        normed = node("Mul", f"norm{i}", node("Mul", x, scale))
        x = node("Add", x, node("MatMul", normed, f"w{i}"))
    scores = node("Softmax", node("Add", x, "mask"), axis=-1)
    nodes[-1].output[0] = "y"
    assert scores
    shape = [1, 4, WIDTH]
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, shape), value("mask", TensorProto.FLOAT, shape)],
        [value("y", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def sample(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    mask = np.where(rng.random((1, 4, WIDTH)) < 0.3, np.float32(-3.4e38), np.float32(0))
    return {"x": rng.standard_normal((1, 4, WIDTH)).astype(np.float32) / 50, "mask": mask}


def epctx(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--color", "never"])
    return result.exit_code, result.output


def report(name: str = "m") -> Any:
    return json.loads(Path(f"dist/{name}.build.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a manifest that was built."""
    folder = tmp_path_factory.mktemp("quantize")
    (folder / "calib").mkdir()
    onnx.save(decoder(), folder / "a.onnx")
    for number in range(4):
        np.savez(folder / "calib" / f"{number}.npz", **sample(number))
    (folder / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        exit_code, output = epctx("build", "m.yaml")
        assert exit_code == 0, output
    return folder


@pytest.fixture
def folder(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of it, with a cache of its own that has nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(built, copy, ignore=shutil.ignore_patterns("cache"))
    monkeypatch.chdir(copy)
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(copy / "cache"))
    return copy


def test_norms_and_masks_are_computed_right(built: Path) -> None:
    found = json.loads((built / "dist" / "m.build.json").read_text(encoding="utf-8"))
    (group,) = found["groups"]
    told = {each["sessions"]: each["comparison"] for each in group["verify"]["numbers"]}
    assert told["quantized"]["sqnr"] > 30, "the quantized model against the float one"
    assert told["files"]["cosine"] > 0.999, "QNN against the quantized model"
    (model,) = group["models"]
    quantized = model["quantized"]
    assert quantized["activations"] == "uint16" and quantized["samples"] == 4
    assert any("mask" in name for name in quantized["limited"])
    assert [each["name"] for each in quantized["outputs"]] == ["y"]
    assert model["coverage"] == 1.0


def test_in_pieces_it_has_the_ranges_and_the_numbers_of_the_whole(folder: Path) -> None:
    pieces = "    partition: {pieces: {count: 3}}\n"
    Path("m.yaml").write_text(MANIFEST + pieces, encoding="utf-8")
    (whole,) = json.loads(Path("m.ranges.json").read_bytes())["calibrations"].values()
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0, output
    (known,) = json.loads(Path("m.ranges.json").read_bytes())["calibrations"].values()
    assert known == whole
    (group,) = report()["groups"]
    told = {each["sessions"]: each["comparison"] for each in group["verify"]["numbers"]}
    assert told["quantized"]["sqnr"] > 30 and told["pieces"]["cosine"] > 0.999
    assert len(list(Path("dist/m/default/g").glob("*.bin"))) == 3
    exit_code, output = epctx("build", "m.yaml", "--locked")
    assert exit_code == 0 and "nothing to do" in output


def test_the_lock_gives_the_same_bytes_without_a_calibration(folder: Path) -> None:
    published = {p.name: p.read_bytes() for p in (folder / "dist/m/default/g").iterdir()}
    shutil.rmtree("dist")
    exit_code, output = epctx("build", "m.yaml", "--locked")
    assert exit_code == 0, output
    assert {p.name: p.read_bytes() for p in (folder / "dist/m/default/g").iterdir()} == published
    (quantized,) = (
        action for action in report()["groups"][0]["actions"] if action["action"] == "quantize"
    )
    assert quantized["ran"]
    kept = info(Cache(locate(), lambda notice: None)).actions
    assert (kept["quantize"], kept["calibrate"]) == (1, 0)


def test_ranges_that_were_edited_are_not_those_of_the_lock(folder: Path) -> None:
    ranges = json.loads(Path("m.ranges.json").read_text(encoding="utf-8"))
    (found,) = ranges["calibrations"].values()
    found["ranges"]["x"] = [-9.0, 9.0]
    Path("m.ranges.json").write_text(json.dumps(ranges), encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml", "--locked")
    assert exit_code == 8 and "the ranges of quantized models" in output
    exit_code, output = epctx("build", "m.yaml", "--recalibrate", "--no-verify")
    assert exit_code == 0, output
    again = json.loads(Path("m.ranges.json").read_text(encoding="utf-8"))
    (found,) = again["calibrations"].values()
    assert found["ranges"]["x"] != [-9.0, 9.0]


def test_verify_and_plan_know_what_it_was_made_from(folder: Path) -> None:
    exit_code, output = epctx("verify", "dist/m", "--manifest", "m.yaml", "-v")
    assert exit_code == 0, output
    assert "of the quantized model agree with the float model" in output
    assert "of the files agree with the source model" in output
    exit_code, output = epctx("plan", "m.yaml")
    assert exit_code == 0 and "quantize a: depends" in output
    exit_code, output = epctx("plan", "m.yaml", "--partition")
    assert exit_code == 0 and "100.0% of" in output, output


def test_plan_explains_a_build_that_failed(folder: Path) -> None:
    for name in ("m.ranges.json", "m.lock.yaml"):
        Path(name).unlink()
    text = MANIFEST.replace("range_floor: -50", "range_floor: -50, tolerance: {max_abs: 1.0e-9}")
    Path("m.yaml").write_text(text, encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 7 and not Path("m.ranges.json").exists(), output
    exit_code, output = epctx("plan", "m.yaml", "--partition")
    assert exit_code == 0 and "100.0% of" in output, output


def test_another_sample_calibrates_again(folder: Path) -> None:
    before = Path("m.ranges.json").read_bytes()
    np.savez("calib/9.npz", **sample(9))
    exit_code, output = epctx("build", "m.yaml", "--locked")
    assert exit_code == 8 and "calib/9.npz: is a new source" in output
    exit_code, output = epctx("build", "m.yaml", "--no-verify")
    assert exit_code == 0, output
    assert Path("m.ranges.json").read_bytes() != before


def test_weights_in_blocks_whose_bytes_vary_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y, z = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4, width])
        for name, width in (("x", 64), ("y", 48), ("z", 64))
    )
    weights = [
        numpy_helper.from_array(rng.random((64, width), np.float32), f"w{width}")
        for width in (48, 64)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w48"], ["y"], "odd"),
        helper.make_node("MatMul", ["x", "w64"], ["z"], "even"),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y, z], weights)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), "a.onnx")
    blocks = "quantize: {weight_only: {bits: 4}}\n    verify: {tolerance: {max_rel: 9}}"
    head = MANIFEST.partition("    quantize: ")[0]
    Path("m.yaml").write_text(f"{head}    {blocks}\n", encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0 and "may not be reproducible: g@default/a: QAIRT 2.51" in output, output
    ((why,),) = (model["unstable"] for model in report()["groups"][0]["models"])
    assert "MatMulNBits 'odd_Q4' of 48 columns: " in why
    exit_code, output = epctx("report", "m.yaml", "--out", "page.html")
    assert exit_code == 0 and "May not be reproducible: QAIRT 2.51" in Path("page.html").read_text(
        encoding="utf-8"
    )


def normalized() -> onnx.ModelProto:
    """A convolution, a BatchNormalization behind it, and one alone, whose parameters are some that
    QNN 2.7.0 computes wrongly when they are quantized. It has metadata, as many exports do.
    """
    rng = np.random.default_rng(3)
    value = helper.make_tensor_value_info
    weights: dict[str, Any] = {"w": rng.standard_normal((8, 8, 3, 3)) / 8}
    for i in "12":
        weights |= {f"{name}{i}": rng.standard_normal(8) for name in "bm"}
        weights[f"s{i}"] = rng.uniform(0.05, 4, 8) * rng.choice([-1, 1], 8)
        weights[f"v{i}"] = rng.uniform(0.01, 5, 8)
    nodes = [
        helper.make_node("BatchNormalization", ["x", "s1", "b1", "m1", "v1"], ["y"], "alone"),
        helper.make_node("Conv", ["y", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["c", "s2", "b2", "m2", "v2"], ["z"], "behind"),
    ]
    shape = [1, 8, 8, 8]
    ends = [value(name, TensorProto.FLOAT, shape) for name in "xyz"]
    arrays = {name: each.astype(np.float32) for name, each in weights.items()}
    initializers = [numpy_helper.from_array(each, name) for name, each in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(made, {"author": "me"})
    return made


def test_batch_normalizations_are_computed_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    onnx.save(normalized(), "a.onnx")
    Path("calib").mkdir()
    for number in range(4):
        x = np.random.default_rng(number).standard_normal((1, 8, 8, 8), np.float32)
        np.savez(f"calib/{number}.npz", x=x)
    Path("m.yaml").write_text(MANIFEST.replace(", range_floor: -50", ""), encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0, output
    (group,) = report()["groups"]
    told = [each["comparison"]["cosine"] for each in group["verify"]["numbers"]]
    assert min(told) > 0.9999, "the quantized model and QNN, each output"
    metadata = onnx.load("dist/m/default/g/a_ctx.onnx").metadata_props
    assert "me" in {each.value for each in metadata if each.key == "author"}


@pytest.mark.parametrize("options", ["", ', options: {soc_model: "30"}'])
def test_a_mask_of_constants_is_kept_off_the_oldest_chips(
    options: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    made = onnx_text.proto(
        "g (float[1,4,16] x, bool[1,4,16] c) => (float[1,4,16] y) <float z = {0.0}, float m = "
        "{-1000000000.0}> { w = Where(c, z, m) s = Add(x, w) y = Softmax(s) }"
    )
    onnx.save(made, "a.onnx")
    Path("calib").mkdir()
    for number in range(2):
        rng = np.random.default_rng(number)
        x, c = rng.standard_normal((1, 4, 16), np.float32), rng.random((1, 4, 16)) > 0.5
        np.savez(f"calib/{number}.npz", x=x, c=c)
    text = MANIFEST.replace("-50", "-100").replace(', options: {soc_model: "60"}', options)
    Path("m.yaml").write_text(text, encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml")
    remedy = "partition: {exclude: {op_types: [Where]}}"
    assert exit_code == 6 and "QNN_COMMON_ERROR_MEM_ALLOC" in output and remedy in output, output
    assert ("set `soc_model`" in output) is (not options)
    Path("m.yaml").write_text(f"{text}    {remedy}\n", encoding="utf-8")
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0 and "verified" in output, output
