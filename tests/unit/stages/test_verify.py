from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ModelError
from epctx.manifest import ProviderSpec
from tests.kit import folders


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be read as a group folder"):
        folders.report(tmp_path / "gone")
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="cannot be read as a group folder"):
        folders.report(tmp_path / "file")


def test_a_model_that_is_not_there_is_a_finding(tmp_path: Path) -> None:
    report = folders.report(folders.write(tmp_path), models=("gone_ctx.onnx",))
    (finding,) = [f for f in report.findings if f.check == "readable"]
    assert (finding.outcome, finding.message) == ("fail", "it does not exist")


def test_an_ep_of_the_manifest_that_is_not_here_is_not_checkable(tmp_path: Path) -> None:
    spec = ProviderSpec(alias="x", provider="AlienExecutionProvider")
    asked = folders.group(execution_providers=(spec,))
    findings = folders.report(folders.write(tmp_path), group=asked).findings
    about = [f for f in findings if f.check in ("source", "info")]
    assert {f.outcome for f in about} == {"not checkable"}
    assert all("AlienExecutionProvider" in f.remedy for f in about)
