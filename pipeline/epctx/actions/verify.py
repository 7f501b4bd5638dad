"""Verify: a folder checked, and what its models computed compared with what is right."""

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
    """Judge what was computed with a session group's models: no model is run here.

    Attributes:
        compile: the key of what is verified: names, settings and EPs are in it; empty where nothing
            is stored.
        outputs: digests of its files, by name.
        models: in the session group's order.
        inputs: what they are run with; None: they are not (`numbers: off`, `--no-verify`).
        tolerance, budget, allow_nonfinite: of `verify`.
        numbers: full, generating, off, or skipped by `--no-verify`.
        devices: what runs them.
        request: the folder, and what is known of it.
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
        """Raises what `stages.verify` raises."""
        from epctx.stages import verify

        assert self.request is not None
        worker.started(StageStarted(stage="verify"))
        return verify.run(informed(self.request, worker))


class Check(Action[FolderReport], frozen=True, kw_only=True):
    """Check a folder by the policies that run no model.

    Attributes:
        sessions: the keys of the verify actions of its session groups.
        outputs: digests of every file of the folder, by name.
        request: the folder, and what is known of it.
        compiled: the job has compiled all that is in it: `SHA256SUMS` is still to be written.
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
        """Raises what `stages.verify` raises."""
        from epctx.stages import verify

        request = self.request
        assert request is not None
        if self.compiled:
            made = worker.last(CompileResult).output.files
            outputs.write_sums(request.folder, made)
            request = replace(request, written=tuple(made))
        worker.started(StageStarted(stage="verify"))
        return verify.run(replace(request, policies=request.checks))


def runs(request: VerifyRequest) -> list[Action[Any]]:
    """Return all that is run to verify a folder by itself, nothing of which is stored.

    Args:
        request: with `kept`.
    """
    assert request.kept is not None
    job: list[Action[Any]] = []
    kept, group = request.kept, request.group
    if group is not None and group.verify.numbers != "off":
        native = any(map(registry.needs_isolation, group.execution_providers))
        job += of_group(group, kept.source, request.folder, magnitudes=native)
    if request.composed is not None:
        job.append(RunParts(request=request, folder=kept.source))
    known = request.composed is not None or group is not None
    if known or not (request.golden or request.device):
        job.append(RunFiles(request=request, folder=kept.files))
    if request.golden:
        job.append(RunFiles(request=request, golden=True, folder=kept.files))
    return job


def verified(
    request: VerifyRequest, carry_out: Callable[[Sequence[Action[Any]]], list[Any]]
) -> FolderReport:
    """Verify a folder by itself.

    Args:
        request: with `kept`, if numbers are among its policies.
        carry_out: carries out a job; one whose budget is used up ends early.

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
    """Carry out a job whose last action is a Verify, and return what was found.

    Args:
        job: if the budget ends it, the Verify is carried out by itself, and knows of the rest.
        carry_out: carries out a job; one whose budget is used up ends early.

    Raises:
        EpctxError: what `carry_out` raises.
    """
    results = carry_out(job)
    found = [each for each in results if isinstance(each, FolderReport)]
    if len(results) == len(job):
        return found
    judging = job[-1]
    assert isinstance(judging, Verify) and judging.request is not None
    earlier = (*judging.request.earlier, *(f for report in found for f in report.findings))
    last = replace(judging, request=replace(judging.request, earlier=earlier))
    return [*found, *carry_out([last])]
