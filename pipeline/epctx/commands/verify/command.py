"""`epctx verify`: each folder in a worker process, so that no file can take the command with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from epctx.commands.verify.folders import Missing
from epctx.engine.scheduler import Scheduler
from epctx.errors import CompileError, EpctxError
from epctx.manifest import ProviderSpec
from epctx.providers import registry
from epctx.verification.findings import Finding, FolderReport, PolicyName, VerifyReport
from epctx.verification.request import VerifyRequest
from epctx.worker.pool import Pool


def run(
    requests: Sequence[VerifyRequest],
    missing: Sequence[Missing] = (),
    *,
    packages: Sequence[FolderReport] = (),
    strict: bool = False,
) -> VerifyReport:
    """Verify the folders, several at a time; the report has them in the order asked.

    Args:
        requests: the folders.
        missing: what is not there.
        packages: what was found about packages as a whole: first in the report.
        strict: what cannot be checked counts as a failure.

    Raises:
        ModelError: a manifest's input files cannot be read.
        ManifestError: a manifest's inputs do not fit its models.
    """
    with tempfile.TemporaryDirectory(prefix="epctx-verify-") as scratch:
        pool = Pool(work=Path(scratch) / "work", logs=Path(scratch) / "logs")
        threads = max(1, min(len(requests), os.cpu_count() or 1))
        with Scheduler(pool, threads=threads) as scheduler:
            reports = scheduler.results(
                [scheduler.submit(_verify, pool, each) for each in requests]
            )
    folders = (*packages, *reports, *map(_absent, missing))
    return VerifyReport(folders=folders, strict=strict)


def _verify(pool: Pool, request: VerifyRequest) -> FolderReport:
    try:
        with pool.lane("verify" if _isolated(request) else None) as lane:
            return lane.run(request, FolderReport)
    except CompileError as error:  # the worker crashed
        policy: PolicyName = "numbers" if request.group is not None else "conformance"
        message = f"verifying it ended a process: {error.reason}"
        remedy = "do not ship it; build it again, and report the crash to who makes the EP"
        crash = Finding(policy, "crash", ".", "fail", message, remedy)
        return FolderReport(folder=request.label, findings=(crash,))


def _isolated(request: VerifyRequest) -> bool:
    """An EP of the folder's needs a process of its own."""
    composed = request.composed.providers if request.composed is not None else ()
    specs = request.group.execution_providers if request.group is not None else composed
    return any(map(_is_isolated, specs))


def _is_isolated(spec: ProviderSpec) -> bool:
    try:
        return registry.is_isolated(spec)
    except EpctxError:
        return False  # it is not here: a finding, and nothing of it is loaded


def _absent(missing: Missing) -> FolderReport:
    message = f"{missing.record} has {missing.label}, and it is not there"
    remedy = f"run `epctx build --only {missing.label}`"
    finding = Finding("conformance", "files", ".", "fail", message, remedy)
    return FolderReport(folder=missing.folder.as_posix(), findings=(finding,))
