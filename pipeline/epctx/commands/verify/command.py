"""`epctx verify`: check folders, packages and registry artifacts."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.verify import verified
from epctx.cache.digests import FreshDigests
from epctx.commands import pull, push
from epctx.commands.verify.folders import Missing
from epctx.engine.actions import quantize
from epctx.engine.executor import Scheduler
from epctx.engine.output.place import PACKAGE
from epctx.engine.ranges import Ranges
from epctx.errors import CompileError
from epctx.files.digest import parsed
from epctx.lockfile.types import Lock
from epctx.manifest import Requirement
from epctx.oci import reference as references
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
    """Verify several folders at a time; the report keeps the order of the requests.

    Args:
        requests: requests for the folders.
        missing: groups that do not exist.
        others: findings about whole packages and release files, which come first in the report.
        ranges: ranges of quantized models; None without a manifest.
        golden: run golden files, or compare a device's results with them; fail if no folder can
            have golden files.
        strict: a check that cannot run counts as a failure.
        require: checks that must run, regardless of the manifest.

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
        message = "there are no golden inputs: none of the named paths can have any"
        folders += (_nothing_to_run("golden", message, " made with `epctx build --golden`"),)
    if require and not requests:
        message = "required numbers were not run: none of the named paths has a model to run"
        folders += (_nothing_to_run("required", message),)
    return VerifyReport(folders=folders, strict=strict)


def _merged(reports: Sequence[FolderReport]) -> Iterable[FolderReport]:
    """Merge the reports of each folder, such as a package's signature and its content."""
    merged: dict[str, FolderReport] = {}
    for each in reports:
        earlier = merged.get(each.folder)
        findings = each.findings if earlier is None else earlier.findings + each.findings
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
    """Tell whether an EP of the folder needs a process of its own."""
    composed = request.composed.providers if request.composed is not None else ()
    specs = request.group.execution_providers if request.group is not None else composed
    return any(map(registry.needs_isolation, specs))


def _nothing_to_run(check: str, message: str, made: str = "") -> FolderReport:
    remedy = f"name the folder of a group, or of a whole release{made}"
    finding = Finding("numbers", check, ".", "fail", message, remedy)
    return FolderReport(folder=".", findings=(finding,))


def _absent(missing: Missing) -> FolderReport:
    message = f"{missing.record} lists {missing.label}, but it does not exist"
    remedy = f"run `epctx build --only {missing.label}`"
    finding = Finding("conformance", "files", ".", "fail", message, remedy)
    return FolderReport(folder=missing.folder.as_posix(), findings=(finding,))


_finding: Final = partial(Finding, "integrity")
_CHANGED: Final = "do not use it: push the build of the lock, or name its digest, @sha256:…"


class Fetched(Struct, frozen=True, kw_only=True):
    """Places to verify.

    Attributes:
        paths: the given paths, with folders in place of references.
        digests: manifest digest of each reference, `sha256:…`.
        folders: temporary folder of each reference.
        attestations: attached files of each reference, by file name.
    """

    paths: tuple[Path, ...]
    digests: Mapping[str, str]
    folders: Mapping[str, Path]
    attestations: Mapping[str, Mapping[str, bytes]]

    @property
    def attached(self) -> frozenset[Path]:
        """Paths of the attestations, beside the artifacts' folders."""
        return frozenset(
            self.folders[name].with_name(file)
            for name, files in self.attestations.items()
            for file in files
        )

    def findings(self, lock: Lock | None, where: str) -> list[FolderReport]:
        """Findings about whole artifacts."""
        return [
            FolderReport(folder=name, findings=tuple(self._of(name, lock, where)))
            for name in self.digests
        ]

    def _of(self, name: str, lock: Lock | None, where: str) -> Iterator[Finding]:
        artifact_digest = self.digests[name]
        yield _finding("registry", ".", "pass", f"matches {artifact_digest} byte for byte")
        for file, content in self.attestations[name].items():
            if push.names(content, parsed(artifact_digest, "sha256")):
                yield _finding("attestation", file, "pass", "names this artifact")
            else:
                yield _finding("attestation", file, "fail", "names another artifact", _CHANGED)
        if lock is not None and lock.oci and (self.folders[name] / "manifest.json").is_file():
            if artifact_digest in lock.oci.values():
                yield _finding("lock", ".", "pass", f"is the artifact of {where}")
            else:
                yield _finding("lock", ".", "fail", f"is not the artifact of {where}", _CHANGED)

    def with_references(self, report: VerifyReport) -> VerifyReport:
        """Replace temporary folders in a report by their references."""
        names = {folder.parent.as_posix(): name for name, folder in self.folders.items()}
        return replace(
            report, folders=tuple(_with_references(each, names) for each in report.folders)
        )


def _with_references(report: FolderReport, names: Mapping[str, str]) -> FolderReport:
    for folder, name in names.items():
        if report.folder.startswith(folder):
            return replace(report, folder=name + report.folder.removeprefix(folder))
    return report


@contextlib.contextmanager
def fetched(places: Sequence[Path | str], *, insecure: bool, name: str | None) -> Iterator[Fetched]:
    """Pull the given artifacts, and yield all places as folders.

    Args:
        named: paths, and references as strings.
        insecure: use plain HTTP for registries.
        name: name of the manifest, from the lock; None if it is unknown.

    Raises:
        EpctxError: raised by `commands.pull.run`.
    """
    paths: list[Path] = []
    digests, folders, attestations = {}, {}, {}
    with contextlib.ExitStack() as stack:
        for each in places:
            if isinstance(each, Path):
                paths.append(each)
                continue
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="epctx-verify-"))
            folder = Path(place).resolve() / "of" / (name or "package")
            folder.parent.mkdir()
            reference = references.parse(each)
            report = pull.run(reference, folder, insecure=insecure, listener=lambda e: None)
            if name and (folder / "manifest.json").is_file():
                folder = folder.rename(folder.with_name(f"{name}{PACKAGE}"))
            digests[each], folders[each] = report.digest, folder
            beside = {file: folder.with_name(file) for file in report.attached}
            attestations[each] = {
                file: path.read_bytes() for file, path in beside.items() if path.is_file()
            }
            paths.append(folder.parent)
        yield Fetched(
            paths=tuple(paths), digests=digests, folders=folders, attestations=attestations
        )
