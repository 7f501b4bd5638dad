"""A quantized model whose compiled one is compared with its float model as well."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epctx import api
from epctx.engine.report import BuildReport
from epctx.errors import EpctxError, ManifestError, VerificationError
from tests.mutation import architectures, faults

MANIFEST = """
schema_version: 1
name: reference
models:
  m:
    path: quantized.onnx
    reference: {path: REFERENCE, tolerance: {max_rel: 0.5, cosine_min: COSINE}}
execution_providers: {ep: {provider: ReferenceExecutionProvider}}
model_groups:
  g:
    models: [m]
    execution_providers: [ep]
    verify: {inputs: {count: 2, ranges: {image: [-2, 2]}}}  # what it was calibrated to
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """float.onnx, quantized.onnx made of it, and two that are no references of it."""
    folder = tmp_path_factory.mktemp("reference")
    model = architectures.mobile(21)
    onnx.save(architectures.quantize(model, folder), folder / "quantized.onnx")
    onnx.save(next(faults.mutants(model, "op", 1))[1], folder / "wrong.onnx")
    onnx.save(architectures.residual(21), folder / "other.onnx")
    return folder


def build(folder: Path, reference: str, cosine: float = 0.9) -> BuildReport:
    text = MANIFEST.replace("REFERENCE", reference).replace("COSINE", str(cosine))
    (folder / "m.yaml").write_text(text, encoding="utf-8")
    return api.build(folder / "m.yaml", out=folder / "dist")


def test_both_are_compared_and_told_apart(folder: Path) -> None:
    report = build(folder, "float.onnx")
    (group,) = report.groups
    assert group.verify is not None
    found = {(n.right, n.input_set): n.comparison for n in group.verify.numbers}
    assert {right for right, _ in found} == {"the source model", "its reference"}
    assert (
        found["the source model", "seed 0, set 0"].max_rel
        != found["its reference", "seed 0, set 0"].max_rel
    )
    passed = [f.message for f in group.verify.findings if f.check == "outputs"]
    assert any("agree with its reference" in message for message in passed)
    (again,) = build(folder, "float.onnx").groups
    assert again.state == "up to date"


@pytest.mark.parametrize(
    ("reference", "cosine", "error", "words"),
    [
        ("wrong.onnx", 0.995, VerificationError, "against its reference"),
        ("other.onnx", 0.9, ManifestError, "other.onnx cannot be the reference of the model m"),
        ("missing.onnx", 0.9, EpctxError, "missing.onnx"),
    ],
)
def test_what_is_no_reference_is_told(
    folder: Path, reference: str, cosine: float, error: type[EpctxError], words: str
) -> None:
    with pytest.raises(error) as caught:
        build(folder, reference, cosine)
    assert words in str(caught.value)


def test_outputs_of_zeros_fail_whatever_the_limits(folder: Path) -> None:
    model = onnx.load(folder / "quantized.onnx")
    for value in model.graph.output:
        made = next(node for node in model.graph.node if value.name in node.output)
        made.output[list(made.output).index(value.name)] = f"{value.name}_before"
        model.graph.node.add(
            op_type="Sub", input=[f"{value.name}_before"] * 2, output=[value.name], name="dead"
        )
    onnx.save(model, folder / "dead.onnx")
    text = MANIFEST.replace("REFERENCE", "float.onnx").replace("COSINE", "0.9")
    text = text.replace("quantized.onnx", "dead.onnx").replace("max_rel: 0.5", "max_rel: 2.0")
    (folder / "m.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(VerificationError, match="it is zero throughout, and should not be"):
        api.build(folder / "m.yaml", out=folder / "dist")
