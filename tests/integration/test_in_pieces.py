"""Folders of models in pieces, verified with their manifest as any other: in worker processes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import epctx
from epctx.verification.findings import FolderReport
from tests.kit import folders, in_pieces

QNN = "QNNExecutionProvider"


def verify(tmp_path: Path, provider: str, *, wrong: dict[int, str] | None = None) -> FolderReport:
    """Write a folder with a model in three pieces, and verify it with its manifest."""
    source, folder = in_pieces.source(tmp_path / "m.onnx"), tmp_path / "out" / "g"
    options = {"soc_model": "60"} if provider == QNN else {}
    in_pieces.assemble(folder, {"m": source}, wrong=wrong, providers=[(provider, options)])
    folders.write_sums(folder)
    (tmp_path / "epctx.yaml").write_text(
        f"""schema_version: 1
name: test
models:
  m: {{path: m.onnx}}
execution_providers:
  ep: {{provider: {provider}, options: {options}}}
model_groups:
  g:
    models: [m]
    execution_providers: [ep]
    partition: {{pieces: {{count: 3}}}}
    verify: {{inputs: {{count: 2}}}}
""",
        encoding="utf-8",
    )
    (report,) = epctx.verify(folder, manifest=tmp_path / "epctx.yaml").folders
    return report


@pytest.mark.parametrize(
    "provider",
    [
        "ReferenceExecutionProvider",
        pytest.param(QNN, marks=pytest.mark.needs("module onnxruntime_qnn")),
    ],
)
def test_a_folder_needs_nothing_but_its_manifest(tmp_path: Path, provider: str) -> None:
    report = verify(tmp_path, provider)
    assert not [f.message for f in report.findings if f.outcome == "fail"]
    assert report.unrun is None
    found = {(n.sessions, n.output) for n in report.numbers}
    assert found == {
        *(("pieces", name) for name in ("early", "a1", "m1", "m2", "z")),
        *((kind, name) for kind in ("chain", "files") for name in ("early", "z")),
    }
    if provider == QNN:
        assert any(n.comparison.max_rel for n in report.numbers), "QNN has computed them"


@pytest.mark.needs("module onnxruntime_qnn")
def test_a_wrong_piece_of_qnn_is_blamed(tmp_path: Path) -> None:
    report = verify(tmp_path, QNN, wrong={2: "w2"})
    passed = {n.input_set[-12:]: n.passed for n in report.numbers if n.sessions == "pieces"}
    assert passed == {"piece 1 of 3": True, "piece 2 of 3": False, "piece 3 of 3": True}
    assert np.sum([not n.passed for n in report.numbers if n.sessions == "chain"]) > 0
