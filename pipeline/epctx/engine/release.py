"""Files of a release beside the outputs: golden files, archive, attestation, signature.

They are made while the output is locked, after everything is published and the lock is written.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from epctx import lockfile
from epctx.actions.golden import Golden
from epctx.engine.events import Event
from epctx.engine.executor import Executor, Executors, Scheduler
from epctx.engine.lock import locked_mode
from epctx.engine.options import ReleaseOptions
from epctx.engine.output import archive, attestation, record
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan, PlannedComposition, PlannedGroup
from epctx.engine.progress import Events, Progress
from epctx.engine.report import BuildReport, GroupReport, ReleaseReport
from epctx.files import atomic, outputs
from epctx.files.digest import Digest, of_bytes
from epctx.files.entries import discard
from epctx.files.outputs import GOLDEN, SUMS, OutputFile
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedFile
from epctx.signing import oms
from epctx.verification.request import Composed

Planned = PlannedGroup | PlannedComposition


class Releasing:
    """Makes the files of a release while the output is locked.

    Args:
        lock: the lock of the build, which decides what is released.
        executors: makes executors.
        locked: whether the lock must stay unchanged.
        signers: signers of cached actions, by key.
    """

    def __init__(
        self,
        plan: Plan,
        place: OutputPaths,
        events: Events,
        lock: Lock,
        *,
        executors: Executors,
        locked: bool,
        signers: Mapping[Digest, str],
    ) -> None:
        self._plan = plan
        self._place = place
        self._events = events
        self._lock = lock
        self._executors = executors
        self._locked = locked
        self._signers = signers
        self._oci = lock.oci

    def release(self, options: ReleaseOptions, report: BuildReport) -> BuildReport:
        """Make the requested files; return the report with them.

        Other files of earlier releases stay if they still describe the outputs; stale ones are
        removed.

        Raises:
            ModelError: a source does not run, or was changed since the build.
            ManifestError: no golden inputs can be made.
            LockError: golden files differ from the lock.
            StorageError: the disk refuses, or a published file was changed.
            Interrupted: the user stopped it; existing files are complete.
        """
        place, stale = self._place, set[str]()
        if options.golden:
            before = self._lock.golden
            report = replace(report, groups=self._golden(report.groups))
            if self._lock.golden != before:
                stale |= {place.archive.name, place.attestation.name}
                discard(place.signature)
        golden = [folder for folder in self._lock.golden if (place.root / folder / GOLDEN).is_dir()]
        files = lockfile.published_files(self._lock, golden)
        release = ReleaseReport()
        if options.archive:
            self._emit("archive")
            release = replace(release, archive=archive.write(place.archive, place.root, files))
            stale.discard(place.archive.name)
            if self._note(release.archive):
                stale.add(place.attestation.name)
        self._withdraw(stale)
        if options.attest and not options.packaged:
            self._emit("attestation")
            content = attestation.make(
                self._plan.manifest,
                self._lock,
                self._subjects(files),
                self._builder(options),
                self._signers,
            )
            release = replace(release, attestation=_written(place.attestation, place.out, content))
            self._note(release.attestation)
        if options.signer is not None:
            self._emit("signature")
            signed = {name: file.sha256 for name, file in files.items()}
            content = oms.sign(options.signer, place.name, signed)
            release = replace(release, signature=_written(place.signature, place.out, content))
        return replace(report, release=release)

    def refuse_other(self, artifact: Digest) -> None:
        """Compare the artifact of a package with the lock of a locked build, before publication.

        Raises:
            LockError: the lock has another artifact.
        """
        if self._locked:
            locked_mode.refuse_other_artifact(self._lock, self._with(artifact), self._plan)

    def _with(self, artifact: Digest) -> Lock:
        """Return the lock with the artifact of the package."""
        return replace(self._lock, oci={hosts.label(hosts.kind(self._lock)): str(artifact)})

    def package(
        self, options: ReleaseOptions, report: BuildReport, artifact: Digest
    ) -> BuildReport:
        """Add the artifact of a written package to the lock and the attestation.

        Args:
            artifact: digest of the manifest that `epctx push` makes of the package.

        Raises:
            ModelError, StorageError: as `release`.
        """
        new = self._with(artifact)
        self._oci = new.oci
        self._relock(new, lambda whole: replace(whole, oci={**whole.oci, **new.oci}))
        return self.release(replace(options, packaged=False), report)

    def _relock(self, new: Lock, added: Callable[[Lock], Lock]) -> None:
        """Set the lock to `new` and write the file with `added`, unless the build is locked."""
        if new != self._lock and not self._locked:
            path = lockfile.place(self._plan.manifest.path)
            atomic.replace(path, lockfile.text(added(lockfile.read(path))).encode())
            self._lock = new

    def _builder(self, options: ReleaseOptions) -> str:
        builder = options.builder or attestation.identify_builder(os.environ)
        if builder is None:
            self._notice(
                "the builder is unknown: the attestation names an unidentified builder; "
                "name it with --builder-id URI"
            )
        return builder or attestation.UNIDENTIFIED_BUILDER

    def _note(self, file: OutputFile | None) -> bool:
        """Record a file, and tell whether it changed."""
        assert file is not None
        new = LockedFile(sha256=file.sha256.hex, size=file.size)
        changed = self._known.get(file.name) != new
        record.add(self._place, self._plan.manifest.path, file.name, new, self._lock)
        return changed

    @property
    def _known(self) -> Mapping[str, LockedFile]:
        """Released files of the record, by name."""
        return record.read(self._place).released

    def _withdraw(self, stale: set[str]) -> None:
        """Remove stale files of earlier releases."""
        recorded = record.read(self._place)
        old = {name: file for name, file in recorded.released.items() if name in stale}
        record.refuse_edited(self._place, old)
        remaining = {name: file for name, file in recorded.released.items() if name not in old}
        record.write(self._place, self._plan.manifest.path, remaining, recorded.of)
        for name in record.remove(self._place, old):
            self._notice(f"removed {name}, which belonged to other golden files or another archive")

    def _subjects(self, files: Mapping[str, LockedFile]) -> dict[str, LockedFile]:
        """Return all released files, by path from the output folder."""
        place = self._place
        subjects = {f"{place.name}/{name}": file for name, file in files.items()}
        subjects[place.name] = attestation.pushed_release(files)
        packaged = place.package.name in self._known and place.package.exists()
        for content in self._oci.values() if packaged else ():
            subjects[place.package.name] = attestation.artifact_digest(content)
        if (archived := self._known.get(place.archive.name)) and place.archive.exists():
            subjects[place.archive.name] = archived
        return subjects

    def _golden(self, groups: tuple[GroupReport, ...]) -> tuple[GroupReport, ...]:
        """Make golden files; return the reports with them, and add them to the lock."""
        plan, place = self._plan, self._place
        planned: dict[str, Planned] = {each.label: each for each in plan.groups}
        planned |= {each.label: each for each in plan.compositions}
        executor = self._executors(work=place.work / "golden", logs=place.logs)
        with Scheduler(executor, interrupted="interrupted, the groups are published"):
            reports = tuple(
                replace(group, golden=self._golden_of(executor, group, planned)) for group in groups
            )
        golden = {f"{each.target}/{each.group}": _locked(each.golden) for each in reports}
        new = replace(self._lock, golden=golden)
        self._relock(new, lambda whole: hosts.added(whole, new))
        return reports

    def _golden_of(
        self, executor: Executor, group: GroupReport, planned: Mapping[str, Planned]
    ) -> tuple[OutputFile, ...]:
        label = f"{group.group}@{group.target}"
        job = _job(planned[label], group, self._place)
        with executor.lease(None) as lease:
            result = Progress(label, self._events).run(lease, group.group, job)
        if self._locked:
            folder = f"{group.target}/{group.group}"
            locked = self._lock.golden[folder]
            locked_mode.refuse_other_golden(folder, locked, _locked(result.files), self._plan)
        published = job.built / GOLDEN
        with outputs.writing(published):
            if published.exists():
                shutil.rmtree(published)
            job.folder.rename(published)
            outputs.sync_folder(job.built)
        return result.files

    def _notice(self, text: str) -> None:
        self._events.emit(Event(group=self._plan.manifest.name, state="notice", detail=text))

    def _emit(self, what: str) -> None:
        name, emit = self._plan.manifest.name, self._events.emit
        emit(Event(group=name, state="running", subject=what, stage="release"))
        emit(Event(group=name, state="done", subject=what))


def _locked(files: Sequence[OutputFile]) -> dict[str, LockedFile]:
    """Return golden files as the lock lists them, without SHA256SUMS."""
    return {
        file.name: LockedFile(sha256=file.sha256.hex, size=file.size)
        for file in files
        if file.name != SUMS
    }


def _job(planned: Planned, report: GroupReport, place: OutputPaths) -> Golden:
    """Return the job that writes the golden files of a group or composition."""
    group, composed = None, None
    if isinstance(planned, PlannedGroup):
        group = planned.group
    else:
        groups = (each.group for each in planned.groups)
        composed = Composed.of(planned.composition, groups, partial(place.group, planned.target))
    findings = () if report.verify is None else report.verify.findings
    criteria = ("numbers", "source", "not checkable")
    subjects = (f.subject for f in findings if (f.policy, f.check, f.outcome) == criteria)
    return Golden(
        group=group,
        composed=composed,
        built=place.group(report.target, report.group),
        folder=place.staging / GOLDEN / report.target / report.group,
        two_answers=tuple(subjects),
    )


def _written(path: Path, out: Path, content: bytes) -> OutputFile:
    """Write a file of the release; return its entry, with its path from the output folder."""
    atomic.replace(path, content)
    return OutputFile(
        name=path.relative_to(out).as_posix(),
        size=len(content),
        sha256=of_bytes(content, "sha256"),
        blake3=of_bytes(content),
    )
