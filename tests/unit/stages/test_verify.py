from __future__ import annotations

from pathlib import Path

import pytest

from epctx import codec
from epctx.errors import ModelError
from epctx.manifest import ProviderSpec
from epctx.stages import verify
from epctx.verification.findings import POLICIES, FolderReport
from epctx.verification.request import VerifyRequest
from tests.kit import folders


def test_the_policies_are_applied_in_their_order(tmp_path: Path) -> None:
    report = folders.report(folders.write(tmp_path), policies=tuple(reversed(POLICIES)))
    seen = dict.fromkeys(finding.policy for finding in report.findings)
    assert tuple(seen) == POLICIES
    assert (report.folder, report.models) == ("here", ("m_ctx.onnx",))


def test_only_the_policies_asked_for_are_applied(tmp_path: Path) -> None:
    report = folders.report(folders.write(tmp_path), policies=("integrity",))
    assert {finding.policy for finding in report.findings} == {"integrity"}


def test_models_come_in_the_groups_order_the_unreadable_ones_last(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    for name in ("z_ctx.onnx", "a_ctx.onnx"):
        (folder / name).write_bytes((folder / "m_ctx.onnx").read_bytes())
    (folder / "m_ctx.onnx").write_bytes(b"\xff\xff")
    asked = folders.group("z", "a", "m")
    assert folders.report(folder, group=asked).models == ("z_ctx.onnx", "a_ctx.onnx", "m_ctx.onnx")


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


def test_request_and_report_cross_to_a_worker_and_back(tmp_path: Path) -> None:
    request = VerifyRequest(folder=folders.write(tmp_path), label="x", group=folders.group())
    again = codec.decode(codec.encode(request), VerifyRequest)
    assert again == request
    report = verify.run(again)
    assert codec.decode(codec.encode(report), FolderReport) == report
