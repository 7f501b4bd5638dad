"""What a release has beside the groups' folders: golden files, an archive, an attestation.

Made while the output is held, after everything is published and the lock is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

from epctx.engine.events import Event
from epctx.engine.executor import Executor
from epctx.engine.output import archive, attestation
from epctx.engine.output.place import Place
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.progress import Events, Progress
from epctx.engine.report import BuildReport, GroupReport, ReleaseReport
from epctx.engine.scheduler import Scheduler
from epctx.errors import UsageError
from epctx.files import atomic, outputs
from epctx.files.digest import of_bytes
from epctx.files.outputs import GOLDEN, SUMS, OutputFile
from epctx.lockfile.types import Lock
from epctx.verification.request import Composed
from epctx.worker.jobs import GoldenJob, GoldenResult
from epctx.worker.pool import Pool


@dataclass(frozen=True, kw_only=True)
class Release:
    """What is asked for.

    Attributes:
        golden: golden inputs and expected outputs in each group's folder.
        archive: `dist/<name>.tar` of all that was published.
        attest: `dist/<name>.intoto.json`.
    """

    golden: bool = False
    archive: bool = False
    attest: bool = False

    @property
    def asked(self) -> bool:
        """Anything is."""
        return self.golden or self.archive or self.attest

    def refuse_parts(self, plan: Plan) -> None:
        """A release is of a whole manifest.

        Raises:
            UsageError: a part of one was to be released.
        """
        if self.asked and not plan.whole:
            raise UsageError(
                "a release is of the whole manifest, and --only leaves something out",
                remedy="leave out --only, or --golden, --archive and --attest",
            )


def release(
    asked: Release, plan: Plan, place: Place, events: Events, report: BuildReport, lock: Lock
) -> BuildReport:
    """Make what is asked for; return the report with it.

    Raises:
        ModelError: a source does not run, or is no longer the one that was built from.
        ManifestError: no golden inputs can be made.
        StorageError: the disk refuses, or a published file was changed.
        Interrupted: the user asked to stop; what is there is whole.
    """
    if asked.golden:
        report = replace(report, groups=_golden(plan, place, events, report.groups))
    files = dict(_files(report))
    made = ReleaseReport()
    if asked.archive:
        _emit(events, plan, "archive")
        tar = place.out / f"{place.name}.tar"
        made = replace(made, archive=archive.write(tar, place.root, files))
    if asked.attest:
        _emit(events, plan, "attestation")
        subjects = {f"{place.name}/{name}": file for name, file in files.items()}
        if made.archive is not None:
            subjects[made.archive.name] = made.archive
        content = attestation.make(plan.manifest.path, lock, subjects)
        path = place.out / f"{place.name}.intoto.json"
        atomic.replace(path, content)
        made = replace(made, attestation=_file(path.name, content))
    return replace(report, release=made)


def _golden(
    plan: Plan, place: Place, events: Events, groups: tuple[GroupReport, ...]
) -> tuple[GroupReport, ...]:
    """The groups and compositions with their golden files."""
    jobs = {(each.target, each.group.name): _job(each, place) for each in plan.groups}
    jobs |= {(e.target, e.composition.name): _composed(e, place) for e in plan.compositions}
    executor = Pool(work=place.work / "golden", logs=place.logs)
    with Scheduler(executor, interrupted="interrupted, the groups are published"):
        return tuple(
            replace(
                group, golden=_golden_of(executor, events, group, jobs[group.target, group.group])
            )
            for group in groups
        )


def _job(planned: PlannedGroup, place: Place) -> GoldenJob:
    target, name = planned.target, planned.group.name
    folder = place.staging / GOLDEN / target / name
    return GoldenJob(group=planned.group, built=place.group(target, name), folder=folder)


def _composed(planned: PlannedComposition, place: Place) -> GoldenJob:
    target, name = planned.target, planned.composition.name
    groups = (each.group for each in planned.groups)
    folder = partial(place.group, target)
    return GoldenJob(
        composed=Composed.of(planned.composition, groups, folder),
        built=place.group(target, name),
        folder=place.staging / GOLDEN / target / name,
    )


def _golden_of(
    executor: Executor, events: Events, group: GroupReport, job: GoldenJob
) -> tuple[OutputFile, ...]:
    progress = Progress(f"{group.group}@{group.target}", events)
    with executor.lane(None) as lane:
        made = progress.run(lane, group.group, job, GoldenResult)
    published = job.built / GOLDEN
    with outputs.writing(published):
        if published.exists():
            shutil.rmtree(published)
        job.folder.rename(published)
        outputs.sync_folder(job.built)
    return made.files


def _files(report: BuildReport) -> Iterator[tuple[str, OutputFile]]:
    """Every published file, by its path from the manifest's output folder."""
    for group in report.groups:
        place = f"{group.target}/{group.group}"
        for file in group.files:
            yield f"{place}/{file.name}", file
        yield f"{place}/{SUMS}", _file(SUMS, outputs.sums(group.files))
        for file in group.golden:
            yield f"{place}/{GOLDEN}/{file.name}", file


def _file(name: str, content: bytes) -> OutputFile:
    return OutputFile(
        name=name,
        size=len(content),
        sha256=of_bytes(content, "sha256"),
        blake3=of_bytes(content),
    )


def _emit(events: Events, plan: Plan, what: str) -> None:
    events.emit(Event(group=plan.manifest.name, state="running", subject=what, stage="release"))
    events.emit(Event(group=plan.manifest.name, state="done", subject=what))
