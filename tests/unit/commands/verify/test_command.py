"""`epctx verify`, and artifacts in registries."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx import api
from epctx.actions.verify import Check
from epctx.commands.verify import command
from epctx.commands.verify import command as fetching
from epctx.errors import CompileError, EpctxError, ManifestError
from epctx.manifest import ProviderSpec
from epctx.verification.findings import Finding, FolderReport, VerifyReport
from epctx.verification.request import VerifyRequest
from tests.kit import folders, pushed, registries, small_registry

Answer = Callable[[VerifyRequest], FolderReport]


class FakePool:
    """An executor whose leases answer as the test says, in place of processes: which of them a
    folder gets is what is tested.
    """

    answer: Answer
    own: list[bool]
    closed: int

    def __init__(self, **_: Any) -> None:
        FakePool.closed = 0

    @contextmanager
    def lease(self, label: str | None) -> Iterator[FakePool]:
        FakePool.own.append(label is not None)
        yield self

    def run(self, job: list[Any], **_: object) -> list[FolderReport]:
        checks = [action for action in job if isinstance(action, Check)]
        reports = [FakePool.answer(check.request) for check in checks if check.request]
        return reports or [FolderReport(folder="")]  # nothing was run: nothing is to be judged

    def cancel(self, reason: EpctxError) -> None: ...

    def close(self) -> None:
        FakePool.closed += 1


def right(request: VerifyRequest) -> FolderReport:
    finding = Finding(
        policy="integrity", check="sums", subject="x", outcome="pass", message="right"
    )
    return FolderReport(folder=request.label, findings=(finding,))


@pytest.fixture(autouse=True)
def pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "Pool", FakePool)
    FakePool.answer = staticmethod(right)
    FakePool.own = []


def requests(*labels: str, **changes: Any) -> list[VerifyRequest]:
    return [VerifyRequest(folder=Path("/x") / each, label=each, **changes) for each in labels]


def test_a_process_that_crashes_is_a_finding_and_the_rest_goes_on() -> None:
    def crash(request: VerifyRequest) -> FolderReport:
        if request.label == "a":
            raise CompileError("the worker process crashed, SIGSEGV", why="log", remedy="see it")
        return right(request)

    FakePool.answer = staticmethod(crash)
    report = command.run(requests("a", "b"))
    (failed,) = report.findings("fail")
    assert failed.check == "crash" and "SIGSEGV: log" in failed.message
    assert report.folders[1].findings[0].outcome == "pass"


def test_an_error_of_the_manifest_is_an_error_and_workers_end() -> None:
    def refuse(request: VerifyRequest) -> FolderReport:
        raise ManifestError("bad range", remedy="change it")

    FakePool.answer = staticmethod(refuse)
    with pytest.raises(ManifestError, match="bad range"):
        command.run(requests("a"))
    assert FakePool.closed == 1


def test_what_is_required_fails_where_nothing_has_a_model() -> None:
    (failed,) = command.run([], require=["numbers"]).findings("fail")
    assert failed.check == "required" and failed.message.startswith("required numbers were not run")
    assert command.run([]).passed and command.run(requests("a"), require=["numbers"]).passed


def test_eps_that_need_isolation_get_a_fresh_process() -> None:
    command.run(requests("a", group=folders.group()))
    unknown = ProviderSpec(alias="x", provider="AlienExecutionProvider")
    command.run(requests("a", group=folders.group(execution_providers=(unknown,))))
    real = ProviderSpec(alias="v", provider="OpenVINOExecutionProvider")
    command.run(requests("a", group=folders.group(execution_providers=(real,))))
    assert FakePool.own == [False, False, True]


def test_it_is_pulled_for_as_long_as_it_is_looked_at(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"one")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        own = api.push(folder, name, insecure=True).digest
        with fetching.fetched([tmp_path, name], insecure=True, name="m") as found:
            kept, place = found.paths
            assert kept == tmp_path and found.folders[name] == place / "m"
            assert (place / "m" / "default" / "main" / "a.bin").read_bytes() == b"one"
            (report,) = found.findings(None, "")
            assert [each.outcome for each in report.findings] == ["pass"]
            assert own in report.findings[0].message
            inner = FolderReport(folder=f"{place.as_posix()}/m", findings=())
            told = found.with_references(VerifyReport(folders=(inner,), strict=False))
            assert told.folders[0].folder == f"{name}/m"
            lies = replace(found, attestations={name: {"m.intoto.json": b"{}"}})
            assert [f.outcome for f in lies.findings(None, "")[0].findings] == ["pass", "fail"]
    assert not place.exists()
