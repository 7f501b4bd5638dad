"""A detector whose boxes are larger numbers than its scores, in one output, on QNN's simulator.

The scores that are lost are found, and each remedy of the message brings them back.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from typer.testing import CliRunner

from epctx.cli.app import app
from tests.kit import onnx_text
from tests.mutation.kinds import KINDS

pytestmark = pytest.mark.needs("module onnxruntime_qnn")
MANIFEST = """\
schema_version: 1
name: m
models: {{a: {{path: a.onnx}}}}
execution_providers: {{qnn: {{provider: QNNExecutionProvider, options: {{soc_model: "60"}}}}}}
model_groups:
  g: {{models: [a], execution_providers: [qnn]{settings}}}
"""
IN_8_BITS = ", quantize: {{calibration: {{random: true}}, activations: {types}{more}}}"


def epctx(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, [*arguments, "--color", "never"])
    return result.exit_code, result.output


def joined(model: onnx.ModelProto) -> onnx.NodeProto:
    """The node that joins boxes and scores."""
    (node,) = (n for n in model.graph.node if model.graph.output[0].name in n.output)
    assert isinstance(node, onnx.NodeProto) and node.op_type == "Concat"
    return node


def apart(model: onnx.ModelProto) -> onnx.ModelProto:
    """The detector with what its last node joins as outputs of their own."""
    node = joined(model)
    known = {value.name: value for value in model.graph.value_info}
    model.graph.node.remove(node)
    del model.graph.output[:]
    model.graph.output.extend(known[name] for name in node.input)
    onnx.checker.check_model(model, full_check=True)
    return model


def write(settings: str) -> None:
    Path("m.yaml").write_text(MANIFEST.format(settings=settings), encoding="utf-8")


def test_scores_that_share_8_bits_with_boxes_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = KINDS["Y1"].model()
    onnx.save(model, "a.onnx")
    write(IN_8_BITS.format(types="uint8", more=""))
    exit_code, output = epctx("build", "m.yaml")
    told = " ".join(output.split())
    assert exit_code == 7 and "error[E0704]" in told
    assert "slice 4 of axis 1 has a scale of its own" in told and "against the float model" in told
    assert "leave the node that joins them (a Concat) out with `quantize.exclude`" in told
    assert not list(Path("dist").glob("**/*.onnx")), "nothing is published"


@pytest.mark.parametrize("remedy", ["exclude", "outputs", "activations"])
def test_each_remedy_brings_them_back(
    remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    model = KINDS["Y1"].model()
    more = f", exclude: {{nodes: [{joined(model).name}]}}" if remedy == "exclude" else ""
    onnx.save(apart(model) if remedy == "outputs" else model, "a.onnx")
    types = "uint16" if remedy == "activations" else "uint8"
    write(IN_8_BITS.format(types=types, more=more))
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0 and "g@default: verified" in output, output


def test_scores_that_a_context_lacks_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiled model has its scores times zero; it is verified against the detector."""
    monkeypatch.chdir(tmp_path)
    right, wrong = KINDS["Y1"].model(), KINDS["Y1"].model()
    node = joined(wrong)
    wrong.graph.initializer.append(numpy_helper.from_array(np.zeros(1, "f4"), "none"))
    at = list(wrong.graph.node).index(node)
    wrong.graph.node.insert(
        at, helper.make_node("Mul", [node.input[-1], "none"], ["lost"], name="lost")
    )
    wrong.graph.node[at + 1].input[-1] = "lost"
    onnx.save(wrong, "a.onnx")
    write("")
    exit_code, output = epctx("build", "m.yaml", "--no-verify")
    assert exit_code == 0, output
    onnx.save(right, "a.onnx")
    exit_code, output = epctx("verify", "dist/m", "--manifest", "m.yaml")
    told = " ".join(output.split())
    assert exit_code == 7 and "slice 4 of axis 1 has a scale of its own" in told, output


def test_a_probability_that_qnn_ends_at_zero_is_not_called_stale(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a detector of voices gives it: about 2e-4 for all random inputs, and 0.0 on QNN."""
    monkeypatch.chdir(tmp_path)
    body = "(float[1,32] x) => (float[1,1] y) { p = MatMul(x, w) q = Add(p, b) y = Sigmoid(q) }"
    model, draw = onnx_text.proto(f"g {body}", opsets='"" : 17'), np.random.default_rng(0)
    for name, values in {"w": draw.standard_normal((32, 1)) / 20, "b": np.array([-8.5])}.items():
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), name))
    onnx.save(model, "a.onnx")
    write("")
    exit_code, output = epctx("build", "m.yaml")
    assert exit_code == 0 and "what the run before gave, and the limits allow" in output
