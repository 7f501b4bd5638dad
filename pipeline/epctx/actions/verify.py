"""Verify: check a folder, and compare its models' outputs with the right ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from msgspec.structs import replace

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.actions.compile import CompileResult
from epctx.actions.run_models import RunFiles, RunParts, informed, of_group
from epctx.files import outputs
from epctx.keys.records import InputsRecord, VerifiedModel
from epctx.manifest import Tolerance
from epctx.providers import registry
from epctx.verification.findings import FolderReport, joined
from epctx.verification.request import VerifyRequest

_CODE = Code((*RUNNING, "stages/verify.py"), SESSIONS)


class Verify(Action[FolderReport], frozen=True, kw_only=True):
    """Judge the outputs of a session group's models; no model runs here.

    Attributes:
        compile: the key of the compile, with names, settings and EPs; empty if nothing is stored.
        outputs: digests of the compiled files, by name.
        models: models in the session group's order.
        inputs: inputs of the runs; None without runs (`numbers: off`, `--no-verify`).
        tolerance, budget, allow_nonfinite: settings of `verify`.
        numbers: full, generating, off, or skipped by `--no-verify`.
        devices: devices that run the models.
        request: the folder, and facts about it.
    """

    result = FolderReport
    kind = "verify"
    version = 4
    code = _CODE
    beside = ("request",)

    compile: str = ""
    outputs: Mapping[str, str] = {}
    models: tuple[VerifiedModel, ...] = ()
    inputs: InputsRecord | None = None
    tolerance: Tolerance | None = None
    numbers: str = ""
    budget: float | None = None
    allow_nonfinite: bool = False
    devices: Mapping[str, str] = {}
    request: VerifyRequest | None = None

    def run(self, worker: WorkerContext) -> FolderReport:
        """Raises the errors of `stages.verify`."""
        from epctx.stages import verify

        assert self.request is not None
        worker.started(StageStarted(stage="verify"))
        return verify.run(informed(self.request, worker))


class Check(Action[FolderReport], frozen=True, kw_only=True):
    """Check a folder by the policies that need no run.

    Attributes:
        sessions: keys of the verify actions of its session groups.
        outputs: digests of every file of the folder, by name.
        request: the folder, and facts about it.
        compiled: true if this job compiled all files in it: `SHA256SUMS` is not written yet.
    """

    result = FolderReport
    kind = "check"
    code = _CODE
    beside = ("request", "compiled")

    sessions: tuple[str, ...] = ()
    outputs: Mapping[str, str] = {}
    request: VerifyRequest | None = None
    compiled: bool = False

    def run(self, worker: WorkerContext) -> FolderReport:
        """Raises the errors of `stages.verify`."""
        from epctx.stages import verify

        request = self.request
        assert request is not None
        if self.compiled:
            files = worker.last(CompileResult).output.files
            outputs.write_sums(request.folder, files)
            request = replace(request, written=tuple(files))
        worker.started(StageStarted(stage="verify"))
        return verify.run(replace(request, policies=request.checks))


def runs(request: VerifyRequest) -> list[Action[Any]]:
    """Return the runs that verify a folder by itself; `request` has `kept`, and nothing is
    stored.
    """
    assert request.kept is not None
    job: list[Action[Any]] = []
    kept, group = request.kept, request.group
    if group is not None and group.verify.numbers != "off":
        native = any(map(registry.needs_isolation, group.execution_providers))
        job += of_group(group, kept.source, request.folder, magnitudes=native)
    if request.composed is not None:
        job.append(RunParts(request=request, folder=kept.source))
    has_sources = request.composed is not None or group is not None
    if has_sources or not (request.golden or request.device):
        job.append(RunFiles(request=request, folder=kept.files))
    if request.golden:
        job.append(RunFiles(request=request, golden=True, folder=kept.files))
    return job


def verified(
    request: VerifyRequest, carry_out: Callable[[Sequence[Action[Any]]], list[Any]]
) -> FolderReport:
    """Verify a folder by itself.

    Args:
        request: request with `kept`, if numbers are among its policies.
        carry_out: carries out a job; a job whose budget is used up ends early.

    Raises:
        EpctxError: what `carry_out` raises.
    """
    check = Check(request=request)
    if "numbers" not in request.policies:
        return cast(FolderReport, carry_out([check])[0])
    numbers = replace(request, policies=("numbers",))
    job = [check, *runs(request), Verify(request=numbers)]
    return joined(request.label, reports(job, carry_out))


def reports(
    job: Sequence[Action[Any]], carry_out: Callable[[Sequence[Action[Any]]], list[Any]]
) -> list[FolderReport]:
    """Carry out a job whose last action is a Verify; return its reports.

    Args:
        job: if the budget ends it, the Verify runs by itself, with the earlier findings.
        carry_out: carries out a job; a job whose budget is used up ends early.

    Raises:
        EpctxError: what `carry_out` raises.
    """
    results = carry_out(job)
    folder_reports = [each for each in results if isinstance(each, FolderReport)]
    if len(results) == len(job):
        return folder_reports
    judging = job[-1]
    assert isinstance(judging, Verify) and judging.request is not None
    earlier = (*judging.request.earlier, *(f for report in folder_reports for f in report.findings))
    last = replace(judging, request=replace(judging.request, earlier=earlier))
    return [*folder_reports, *carry_out([last])]
