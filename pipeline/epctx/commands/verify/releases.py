"""Check archives, attestations and kits beside groups; report entries that nothing checks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from epctx import limits
from epctx import lockfile as locks
from epctx.commands.package import checking
from epctx.commands.package.checking import Checked
from epctx.commands.verify.folders import words
from epctx.engine.output import archive, attestation
from epctx.engine.output.place import PACKAGE
from epctx.error_codes import Code
from epctx.errors import EpctxError, UsageError
from epctx.files import digest
from epctx.files import paths as paths_
from epctx.files.outputs import GOLDEN, SIGNATURE
from epctx.files.regular import open_regular
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedFile
from epctx.verification.findings import Finding, FolderReport, PolicyName
from epctx.verification.request import VerifyRequest

ARCHIVE: Final = ".tar"
ATTESTATION: Final = ".intoto.json"
_finding: Final = partial(Finding, "integrity", "lock")
_entry: Final = partial(Finding, "integrity", "covered")
_CHANGED: Final = "do not ship it: make the release again, or get it from where it was released"
_STRAY: Final = "remove it, or name the folder of the release alone; or name the right lock"


def named(paths: Sequence[Path]) -> list[Path]:
    """Select the paths of archives and attestations."""
    endings = (ARCHIVE, ATTESTATION)
    return [path for path in paths if path.name.endswith(endings) and not path.is_dir()]


def is_released(path: Path, lock: Lock) -> bool:
    """Tell whether a file has the name of the archive or attestation of the lock's release."""
    return path.is_file() and path.name in {f"{lock.name}{ARCHIVE}", f"{lock.name}{ATTESTATION}"}


def uncovered(name: str) -> Finding:
    """Finding for an entry that nothing checks."""
    message = "no requested check covers it"
    return _entry(name, "not covered", message, "make sure that it belongs there, or remove it")


def byproduct(name: str) -> Finding:
    """Finding for a file that a build writes beside its outputs."""
    return _entry(
        name, "not covered", "a build writes it for its own use: it is not part of a release"
    )


def stray(where: str) -> Callable[[str], Finding]:
    """Finding for an entry that the lock does not have; `where` names the lock in messages."""
    return lambda name: _entry(name, "fail", f"is not in {where}", _STRAY)


def kit(folder: Path, label: str) -> Checked:
    """Compare a kit's files with its SHA256SUMS, and request to verify its models.

    Args:
        folder: absolute folder of the kit.
        label: name of the kit in the report.
    """
    entries = [entry for entry in paths_.entries(folder) if entry != SIGNATURE]
    findings = tuple(checking.check_hashes(folder, entries, checking.read_hashes(folder, entries)))
    models: dict[str, list[str]] = {}
    for entry in entries:
        place, _, name = entry.rpartition("/")
        if name.endswith(".onnx"):
            models.setdefault(place, []).append(name)
    intact = all(each.outcome != "fail" for each in findings)
    policies: tuple[PolicyName, ...] = ("conformance", "compatibility")
    requests = (
        VerifyRequest(
            folder=folder / place,
            label=f"{label}/{place}",
            models=tuple(names),
            policies=(*policies, "numbers") if intact else policies,
        )
        for place, names in models.items()
    )
    report = FolderReport(folder=label, findings=findings)
    return Checked(report=report, requests=tuple(requests))


def check(path: Path, lock: Lock | None, where: str) -> FolderReport:
    """Compare a file of a release with a lock.

    Args:
        where: name of the lock in messages.

    Raises:
        UsageError: the file does not exist, or there is no lock to compare with.
    """
    if not path.is_file():
        what = "is not a regular file" if path.exists() else "does not exist"
        raise UsageError(what, file=words(path), remedy="check the path", code=Code.NO_SUCH_PATH)
    if lock is None:
        raise UsageError(
            "can only be compared with a lock",
            file=words(path),
            why="nothing in it proves that it comes from the build",
            remedy="name the lock with --lock, or unpack an archive and verify what is in it",
        )
    judge = _archive if path.name.endswith(ARCHIVE) else _attestation
    if judge is _attestation:
        attestation.require()
    return FolderReport(folder=words(path), findings=tuple(_findings(judge, path, lock, where)))


def _findings(
    judge: Callable[[Path, Lock, str], Iterator[Finding]], path: Path, lock: Lock, where: str
) -> Iterator[Finding]:
    try:
        yield from judge(path, lock, where)
    except EpctxError as error:
        yield _finding(path.name, "fail", error.reason, _CHANGED)
    except OSError as error:
        yield _finding(path.name, "fail", f"cannot be read: {error.strerror}", _CHANGED)


def _archive(path: Path, lock: Lock, where: str) -> Iterator[Finding]:
    faults = []
    for view in hosts.views(lock):
        golden = {f"{folder}/{GOLDEN}" for folder in view.golden}
        files = locks.published_files(view, view.golden)
        faults.append(archive.fault(path, lock.name, files, golden))
    fault = None if None in faults else faults[0]
    if fault is not None:
        yield _finding(path.name, "fail", f"{fault}, which follows from {where}", _CHANGED)
    else:
        yield _finding(path.name, "pass", f"every byte follows from {where}")


def _attestation(path: Path, lock: Lock, where: str) -> Iterator[Finding]:
    """Compare an attestation's subjects, lock, toolchain and materials with the lock.

    Facts that no lock has rest on the signer alone: the builder, the manifest's digest, and the
    SHA-256 of sources and packages.
    """
    _, descriptor = open_regular(path, where=path.name)
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(limits.REPORT_BYTES.value)
    own, subjects = attestation.lock_and_subjects(content)
    name = path.name
    views = {_digest(each): each for each in hosts.views(lock)}
    lock = views.get(own, next(iter(views.values())))
    if own in views:
        yield _finding(name, "pass", f"names {where}")
    else:
        yield _finding(name, "fail", f"names another lock than {where}", _CHANGED)
    part = attestation.difference(content, lock)
    if part is not None:
        yield _finding(name, "fail", f"its {part} does not follow from {where}", _CHANGED)
    archived = subjects.pop(f"{lock.name}{ARCHIVE}", None)
    present = [folder for folder in lock.golden if _has_golden(lock, folder, subjects)]
    expected = {f"{lock.name}/{n}": f for n, f in locks.published_files(lock, present).items()}
    pushed = {
        f"{lock.name}{PACKAGE}": each
        for each in map(attestation.artifact_digest, lock.oci.values())
    }
    pushed[lock.name] = attestation.pushed_release(locks.published_files(lock, present))
    expected |= {subject: each for subject, each in pushed.items() if subject in subjects}
    faults = list(_differences(subjects, expected))
    for subject, fault in faults:
        yield _finding(subject, "fail", f"{fault}, by {where}", _CHANGED)
    if not faults and part is None:
        yield _finding(name, "pass", f"names every file of {where}, and what made them")
    if archived is not None:
        yield from _archived(path.with_name(f"{lock.name}{ARCHIVE}"), archived)


def _digest(lock: Lock) -> str:
    return digest.of_bytes(locks.built(lock), "sha256").hex


def _archived(path: Path, named: str) -> Iterator[Finding]:
    """Check the archive beside an attestation that names it."""
    if not path.is_file():
        remedy = "verify both in the same folder"
        yield _finding(
            path.name,
            "not checkable",
            "the attestation names it, but it is not beside the attestation",
            remedy,
        )
    elif digest.of_file(path, "sha256").hex != named:
        yield _finding(path.name, "fail", "is not the archive that the attestation names", _CHANGED)
    else:
        yield _finding(path.name, "pass", "is the archive that the attestation names")


def _has_golden(lock: Lock, folder: str, subjects: Mapping[str, str]) -> bool:
    return any(name.startswith(f"{lock.name}/{folder}/{GOLDEN}/") for name in subjects)


def _differences(
    subjects: Mapping[str, str], expected: Mapping[str, LockedFile]
) -> Iterator[tuple[str, str]]:
    for name in sorted({*subjects, *expected}):
        if name not in expected:
            yield name, "is not part of the release"
        elif name not in subjects:
            yield name, "is missing"
        elif subjects[name] != expected[name].sha256:
            yield name, "has another SHA-256"
