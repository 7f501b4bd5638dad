"""`epctx verify`: each folder in a worker process, so that no file can take the command with it."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from epctx.actions.verify import verified
from epctx.cache.digests import FreshDigests
from epctx.commands.verify.folders import Missing
from epctx.engine.actions import quantize
from epctx.engine.executor import Scheduler
from epctx.engine.ranges import Ranges
from epctx.errors import CompileError
from epctx.manifest import Requirement
from epctx.providers import registry
from epctx.verification.findings import Finding, FolderReport, PolicyName, VerifyReport
from epctx.verification.request import Kept, VerifyRequest
from epctx.worker.pool import Pool, own_logs


def run(
    requests: Sequence[VerifyRequest],
    missing: Sequence[Missing] = (),
    *,
    others: Sequence[FolderReport] = (),
    ranges: Ranges | None = None,
    golden: bool = False,
    strict: bool = False,
    require: Sequence[Requirement] = (),
) -> VerifyReport:
    """Verify the folders, several at a time; the report has them in the order asked.

    Args:
        requests: the folders.
        missing: what is not there.
        others: what was found about packages as a whole and files of a release: first in the
            report.
        ranges: of models that the manifest quantizes; None: there is no manifest.
        golden: golden files are to be run, or a device's results judged by them: a folder must be
            there that can have some.
        strict: what cannot be checked counts as a failure.
        require: checks that must run, whatever the manifest says.

    Raises:
        ModelError: a manifest's input files cannot be read.
        ManifestError: a manifest's inputs do not fit its models.
    """
    requests = [replace(each, require=tuple(require)) for each in requests]
    with tempfile.TemporaryDirectory(prefix="epctx-verify-") as scratch:
        pool = Pool(work=Path(scratch) / "work", logs=own_logs())
        threads = max(1, min(len(requests), os.cpu_count() or 1))
        with Scheduler(pool, threads=threads) as scheduler:
            reports = scheduler.results(
                [
                    scheduler.submit(_verify, pool, each, ranges, Path(scratch) / f"q{number}")
                    for number, each in enumerate(requests)
                ]
            )
    folders = (*_merged(others), *reports, *map(_absent, missing))
    if golden and not any(each.golden or each.device for each in requests):
        message = "there are no golden inputs: nothing that was named can have some"
        folders += (_nothing("golden", message, " made with `epctx build --golden`"),)
    if require and not requests:
        message = "required numbers were not run: nothing that was named has a model to run"
        folders += (_nothing("required", message),)
    return VerifyReport(folders=folders, strict=strict)


def _merged(reports: Sequence[FolderReport]) -> Iterable[FolderReport]:
    """One report of each folder: of a package, say, its signature and what is in it."""
    merged: dict[str, FolderReport] = {}
    for each in reports:
        known = merged.get(each.folder)
        findings = each.findings if known is None else known.findings + each.findings
        merged[each.folder] = replace(each, findings=findings)
    return merged.values()


def _verify(
    pool: Pool, request: VerifyRequest, ranges: Ranges | None, folder: Path
) -> FolderReport:
    if request.group is not None and ranges is not None:
        with pool.lease(None) as lease:
            digests = FreshDigests()
            group = quantize.again(request.group, ranges, digests, folder, lease)
        request = replace(request, group=group)
    kept = Kept.below(folder / "kept")
    settings = None if request.group is None else request.group.verify
    budget = None if settings is None or settings.numbers == "off" else settings.budget
    try:
        with pool.lease("verify" if _isolated(request) else None) as lease:
            return verified(replace(request, kept=kept), lambda job: lease.run(job, budget=budget))
    except CompileError as error:  # the worker crashed, or an EP raised an exception
        policy: PolicyName = "numbers" if request.group is not None else "conformance"
        message = f"cannot be verified: {error.reason}"
        remedy = "do not ship it; build it again, and report this to the maker of the EP"
        crash = Finding(policy, "crash", ".", "fail", message, remedy)
        return FolderReport(folder=request.label, findings=(crash,))


def _isolated(request: VerifyRequest) -> bool:
    """An EP of the folder's needs a process of its own."""
    composed = request.composed.providers if request.composed is not None else ()
    specs = request.group.execution_providers if request.group is not None else composed
    return any(map(registry.needs_isolation, specs))


def _nothing(check: str, message: str, made: str = "") -> FolderReport:
    remedy = f"name the folder of a group, or of a whole release{made}"
    finding = Finding("numbers", check, ".", "fail", message, remedy)
    return FolderReport(folder=".", findings=(finding,))


def _absent(missing: Missing) -> FolderReport:
    message = f"{missing.record} has {missing.label}, and it is not there"
    remedy = f"run `epctx build --only {missing.label}`"
    finding = Finding("conformance", "files", ".", "fail", message, remedy)
    return FolderReport(folder=missing.folder.as_posix(), findings=(finding,))
