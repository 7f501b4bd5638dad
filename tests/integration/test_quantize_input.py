"""What cannot be quantized, and samples that do not fit, end in a message that says what to do.

What each message is, docs/quantization.md has in a table: EPCTX_UPDATE_GOLDEN=1 writes it there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.worker import pool
from tests.kit.building import mlp
from tests.kit.inline import Inline

PAGE = Path(__file__).parents[2] / "docs" / "quantization.md"
MANIFEST = """\
schema_version: 1
name: m
models: {{a: {{path: a.onnx}}}}
execution_providers: {{}}
model_groups:
  g:
    models: [a]
    execution_providers: []
    quantize: {quantize}
"""
GIVEN = "calibration: {files: [calib/*.npz]}"
Feeds = dict[str, Any]


def mlp_of(kind: type[np.generic]) -> onnx.ModelProto:
    """The model, its weights and values of another type of float."""
    model = mlp(width=8, layers=2)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.elem_type = element
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor).astype(kind)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))
    return model


def quantized() -> onnx.ModelProto:
    """A model in which a value is quantized."""
    model = mlp(width=8, layers=2)
    model.graph.initializer.append(numpy_helper.from_array(np.array(0.1, np.float32), "s"))
    model.graph.initializer.append(numpy_helper.from_array(np.array(0, np.uint8), "z"))
    model.graph.node[0].input[0] = "xd"
    for node in (
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"], "dq"),
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"], "q"),
    ):
        model.graph.node.insert(0, node)
    return model


def in_blocks() -> onnx.ModelProto:
    """A model with weights of 4 bits in blocks."""
    model = mlp(width=32, layers=1)
    node = model.graph.node[0]
    node.op_type, node.domain, node.name = "MatMulNBits", "com.microsoft", "blocks"
    node.input[:] = ["x", "packed", "scales"]
    for name, value in {"K": 32, "N": 32, "bits": 4, "block_size": 32}.items():
        node.attribute.append(helper.make_attribute(name, value))
    packed = np.full((32, 1, 16), 0x99, np.uint8)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(packed, "packed"))
    scales = np.ones(32, np.float32)
    model.graph.initializer.append(numpy_helper.from_array(scales, "scales"))
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    return model


def custom() -> onnx.ModelProto:
    """A model with an operator that nobody has."""
    model = mlp(width=8, layers=2)
    model.graph.node[2].domain, model.graph.node[2].op_type = "com.example", "Turbo"
    model.opset_import.append(helper.make_opsetid("com.example", 1))
    return model


def integers() -> onnx.ModelProto:
    """A model of which nothing can be quantized."""
    x = helper.make_tensor_value_info("x", TensorProto.INT64, [1, 8])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1, 8])
    graph = helper.make_graph([helper.make_node("Abs", ["x"], ["y"], "abs")], "g", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def batch() -> list[Feeds]:
    """Three samples that fit; the last one with what is given."""
    rng = np.random.default_rng(0)
    return [{"x": rng.standard_normal((1, 8)).astype(np.float32)} for _ in range(3)]


def last(sample: Feeds) -> list[Feeds]:
    return [*batch()[:2], sample]


def spoilt(value: float) -> list[Feeds]:
    found = batch()
    array = found[2]["x"].copy()
    array[0, 3] = value
    return last({"x": array})


@dataclass(frozen=True)
class Bad:
    """A case: what is told of it in the table, what is given, and the exit code."""

    what: str
    exit_code: int
    quantize: str = f"{{{GIVEN}}}"
    model: Callable[[], onnx.ModelProto] = field(default=lambda: mlp(width=8, layers=2))
    samples: Callable[[], list[Feeds]] = batch


BAD = [
    Bad("no samples are named", 3, quantize="{preset: qnn}"),
    Bad("the pattern matches no file", 3, samples=list),
    Bad("samples are generated, and named", 3, quantize=f"{{{GIVEN[:-1]}, random: true}}}}"),
    Bad("an input of another name", 3, samples=lambda: last({"z": np.zeros((1, 8), np.float32)})),
    Bad(
        "a value more",
        3,
        samples=lambda: last({**batch()[0], "mask": np.zeros((1, 8), np.float32)}),
    ),
    Bad("another shape", 3, samples=lambda: last({"x": np.zeros((1, 9), np.float32)})),
    Bad("another rank", 3, samples=lambda: last({"x": np.zeros(8, np.float32)})),
    Bad("another type", 3, samples=lambda: last({"x": np.zeros((1, 8), np.float64)})),
    Bad("NaN", 3, samples=lambda: spoilt(np.nan)),
    Bad("infinity", 3, samples=lambda: spoilt(np.inf)),
    Bad("a node pattern that matches none", 3, quantize=f"{{{GIVEN}, exclude: {{nodes: [mm9]}}}}"),
    Bad(
        "an op type that is not there", 3, quantize=f"{{{GIVEN}, exclude: {{op_types: [Matmul]}}}}"
    ),
    Bad(
        "a tensor that is not there", 3, quantize=f"{{{GIVEN}, overrides: {{w9: {{type: uint8}}}}}}"
    ),
    Bad(
        "a tensor that is fused away",
        3,
        quantize=f"{{{GIVEN}, overrides: {{a0: {{range: [-1, 1]}}}}}}",
    ),
    Bad(
        "an op type that is not there, for blocks",
        3,
        quantize="{weight_only: {bits: 4}, exclude: {op_types: [Matmul]}}",
    ),
    Bad("everything is excluded", 4, quantize=f'{{{GIVEN}, exclude: {{nodes: ["*"]}}}}'),
    Bad(
        "all its op types are excluded",
        4,
        quantize=f"{{{GIVEN}, exclude: {{op_types: [Gemm, Relu, Tanh]}}}}",
    ),
    Bad(
        "activations of int8, weights of uint8",
        3,
        quantize=f"{{{GIVEN}, activations: int8, weights: uint8}}",
    ),
    Bad(
        "a setting that has no effect", 3, quantize="{weight_only: {bits: 4}, activations: uint16}"
    ),
    Bad(
        "for QNN, weights of 4 bits with one scale",
        3,
        quantize=f"{{{GIVEN}, preset: qnn, weights: int4}}",
    ),
    Bad("a quantized model", 4, model=quantized),
    Bad(
        "weights in blocks",
        4,
        model=in_blocks,
        samples=lambda: [{"x": np.zeros((1, 32), np.float32)}],
    ),
    Bad(
        "a float16 model",
        4,
        model=lambda: mlp_of(np.float16),
        samples=lambda: last({"x": np.zeros((1, 8), np.float16)}),
    ),
    Bad("a float64 model", 4, model=lambda: mlp_of(np.float64)),
    Bad("an operator that ONNX Runtime does not have", 4, model=custom),
    Bad(
        "a model of integers",
        4,
        model=integers,
        samples=lambda: [{"x": np.arange(8, dtype=np.int64)[None]}],
    ),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(case: Bad) -> None:
    onnx.save(case.model(), "a.onnx")
    Path("calib").mkdir()
    for number, sample in enumerate(case.samples()):
        np.savez(f"calib/{number}.npz", **sample)
    Path("epctx.yaml").write_text(MANIFEST.format(quantize=case.quantize), encoding="utf-8")


def build(*options: str) -> tuple[int, str]:
    ran = CliRunner().invoke(app, ["build", "epctx.yaml", *options], prog_name="epctx")
    assert "Traceback" not in ran.output
    return ran.exit_code, ran.output


def told(output: str) -> str:
    """The error of an output, in a line."""
    found = re.search(r"^error\[E\d{4}\].*?^  -> [^\n]*", output, re.MULTILINE | re.DOTALL)
    assert found is not None, output
    return re.sub(r"\n\s*", " ", found[0])


def row(case: Bad, output: str) -> str:
    return f"| {case.what} | {case.exit_code} | {told(output).replace('|', chr(92) + '|')} |"


@pytest.mark.parametrize("case", [pytest.param(case, id=case.what) for case in BAD])
def test_bad_input(case: Bad, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "Worker", Inline)
    write(case)
    exit_code, output = build()
    assert exit_code == case.exit_code, output
    for left in ("epctx.lock.yaml", "epctx.ranges.json", "dist/m", "dist/m.staging"):
        assert not Path(left).exists(), f"half-written: {left}"
    assert sorted(p.name for p in folder.glob("*")) in (
        ["a.onnx", "calib", "epctx.yaml"],
        ["a.onnx", "calib", "dist", "epctx.yaml"],
    ), "something lies beside the source"
    text = PAGE.read_text(encoding="utf-8")
    mine = row(case, output)
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        known = re.compile(rf"^\| {re.escape(case.what)} \|.*$", re.MULTILINE)
        assert known.search(text), "put a row of its name into the table first"
        PAGE.write_text(known.sub(lambda _: mine, text), encoding="utf-8")
    else:
        assert mine in text


def test_the_table_has_no_other_rows() -> None:
    section = PAGE.read_text(encoding="utf-8").partition("## What is refused")[2]
    found = re.findall(r"^\| (.*?) \| \d ", section, re.MULTILINE)
    assert found == [case.what for case in BAD]


def test_one_sample_is_enough_and_a_notice(folder: Path) -> None:
    write(Bad("one", 0, samples=lambda: batch()[:1]))
    exit_code, output = build()
    assert exit_code == 0, output
    assert "quantized: g@default/a: its ranges are of a single sample" in output


def test_the_environment_does_not_make_onnxruntime_plot(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUANTIZATION_DEBUG", "1")
    write(Bad("well", 0, quantize=f"{{{GIVEN}, method: percentile}}"))
    exit_code, output = build()
    assert exit_code == 0, output
    assert sorted(p.name for p in folder.iterdir()) == [
        *("a.onnx", "calib", "dist", "epctx.lock.yaml", "epctx.ranges.json", "epctx.yaml")
    ]


# --- the file of ranges ---


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a build, without its outputs and its cache."""
    made = tmp_path_factory.mktemp("built")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(made)
        write(Bad("well", 0))
        exit_code, output = build()
        assert exit_code == 0, output
    return made


@pytest.fixture
def restored(built: Path, folder: Path) -> Path:
    """The manifest, model, samples, lock and ranges of `built`, in a folder of their own."""
    Path("calib").mkdir()
    for path in (*built.glob("*.*"), *built.glob("calib/*")):
        Path(path.relative_to(built)).write_bytes(path.read_bytes())
    return folder / "epctx.ranges.json"


Document = dict[str, dict[str, dict[str, dict[str, object]]]]


def edited(path: Path, edit: Callable[[Document], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    edit(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def ranges_of(document: Document) -> dict[str, object]:
    (found,) = document["calibrations"].values()
    return found["ranges"]


@pytest.mark.parametrize(
    ("edit", "why"),
    [
        (lambda d: ranges_of(d).update(r0=[float("nan"), 1]), "JSON is malformed"),
        (lambda d: ranges_of(d).update(r0=[5, -5]), "[5.0, -5.0] of 'r0' is not a float32"),
        (lambda d: ranges_of(d).update(r0=[0, 1e300]), "[0.0, 1e+300] of 'r0' is not a float32"),
        (lambda d: ranges_of(d).update(r0="high"), "Expected `array`, got `str`"),
        (lambda d: d.update(schema_version=2), "schema_version 2, this epctx reads 1"),
    ],
)
def test_ranges_that_are_none(edit: Callable[[Document], object], why: str, restored: Path) -> None:
    edited(restored, edit)
    before = restored.read_bytes()
    exit_code, output = build()
    assert exit_code == 3
    assert told(output).startswith("error[E0324]: epctx.ranges.json: is not a file of calibrated")
    assert why in told(output)
    assert restored.read_bytes() == before and not Path("dist").exists()


def test_a_damaged_file_of_ranges(restored: Path) -> None:
    restored.write_bytes(restored.read_bytes()[:200])
    assert build()[0] == 3
    restored.unlink()
    assert build()[0] == 0
    assert restored.exists(), "it was calibrated again"


def test_ranges_without_a_tensor(restored: Path) -> None:
    edited(restored, lambda d: ranges_of(d).pop("x"))
    exit_code, output = build()
    assert exit_code == 3, output
    assert "model a: its tensor 'x' has no range" in output
    assert "epctx build --recalibrate" in told(output)
    assert build("--recalibrate")[0] == 0
    assert build("--locked")[0] == 0


def test_ranges_of_another_model_are_not_used(restored: Path) -> None:
    good = restored.read_bytes()

    def other(document: Document) -> None:
        (found,) = document["calibrations"].values()
        document["calibrations"] = {f"blake3:{'0' * 64}": found}

    edited(restored, other)
    exit_code, output = build("--locked")
    assert exit_code == 8
    assert "the ranges of quantized models" in output
    assert build()[0] == 0
    assert restored.read_bytes() == good, "found again, and of the other model nothing is left"
    assert build("--locked")[0] == 0
