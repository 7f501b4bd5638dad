"""What a release has beside the groups, held to the lock: archive, attestation, what is astray."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from epctx import limits
from epctx import lockfile as locks
from epctx.commands.verify.folders import words
from epctx.engine.output import archive, artifacts, attestation
from epctx.engine.output.place import PACKAGE
from epctx.error_codes import Code
from epctx.errors import EpctxError, UsageError
from epctx.files import digest
from epctx.files import paths as paths_
from epctx.files.outputs import GOLDEN, SIGNATURE
from epctx.files.regular import open_regular
from epctx.lockfile import hosts, released
from epctx.lockfile.types import Lock, LockedFile
from epctx.verification.findings import Finding, FolderReport

ARCHIVE: Final = ".tar"
ATTESTATION: Final = ".intoto.json"
_finding: Final = partial(Finding, "integrity", "lock")
_CHANGED: Final = "do not ship it: make the release again, or get it from where it was released"


def named(paths: Sequence[Path]) -> list[Path]:
    """Those of the paths that are archives or attestations."""
    endings = (ARCHIVE, ATTESTATION)
    return [path for path in paths if path.name.endswith(endings) and not path.is_dir()]


def beside(paths: Sequence[Path], lock: Lock) -> list[Path]:
    """The archive and the attestation of a lock's release in the folders that were named."""
    names = (f"{lock.name}{ending}" for ending in (ARCHIVE, ATTESTATION))
    found = (folder / name for name in names for folder in paths)
    return [path for path in found if path.is_file()]


def strays(root: Path, lock: Lock, where: str) -> FolderReport | None:
    """What lies in the folder of a whole release, and in no group's; None: nothing does."""
    held = tuple(f"{folder}/" for folder in lock.folders)
    found = [e for e in paths_.entries(root) if not e.startswith(held) and e != SIGNATURE]
    message = f"is of no group of {where}"
    remedy = "remove it: nothing but what was built belongs there; or name the right lock"
    findings = tuple(_finding(entry, "fail", message, remedy) for entry in found)
    return FolderReport(folder=words(root), findings=findings) if findings else None


def check(path: Path, lock: Lock | None, where: str) -> FolderReport:
    """Hold a file of a release to a lock.

    Args:
        where: the lock in messages.

    Raises:
        UsageError: there is no such file, or no lock to hold it to.
    """
    if not path.is_file():
        what = "is no regular file" if path.exists() else "does not exist"
        raise UsageError(what, file=words(path), remedy="check the path", code=Code.NO_SUCH_PATH)
    if lock is None:
        raise UsageError(
            "is held to a lock alone",
            file=words(path),
            why="nothing in it tells that it is what was built",
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
        files = released.files(view, view.golden)
        faults.append(archive.fault(path, lock.name, files, golden))
    fault = None if None in faults else faults[0]
    if fault is not None:
        yield _finding(path.name, "fail", f"{fault}, which follows from {where}", _CHANGED)
    else:
        yield _finding(path.name, "pass", f"every byte follows from {where}")


def _attestation(path: Path, lock: Lock, where: str) -> Iterator[Finding]:
    """Its subjects are all that was published, and its lock is this one.

    What else it says is said by whoever signed it: who built it, from which manifest.
    """
    _, descriptor = open_regular(path, where=path.name)
    with os.fdopen(descriptor, "rb") as stream:
        content = stream.read(limits.REPORT_BYTES.value)
    own, subjects = attestation.said(content)
    name = path.name
    views = {_digest(each): each for each in hosts.views(lock)}
    lock = views.get(own, next(iter(views.values())))
    if own in views:
        yield _finding(name, "pass", f"names {where}")
    else:
        yield _finding(name, "fail", f"names another lock than {where}", _CHANGED)
    archived = subjects.pop(f"{lock.name}{ARCHIVE}", None)
    present = [folder for folder in lock.golden if _has_golden(lock, folder, subjects)]
    expected = {f"{lock.name}/{n}": f for n, f in released.files(lock, present).items()}
    pushed = {f"{lock.name}{PACKAGE}": each for each in map(artifacts.named, lock.oci.values())}
    pushed[lock.name] = artifacts.of_release(released.files(lock, present))
    expected |= {subject: each for subject, each in pushed.items() if subject in subjects}
    faults = list(_differences(subjects, expected))
    for subject, fault in faults:
        yield _finding(subject, "fail", f"{fault}, by {where}", _CHANGED)
    if not faults:
        yield _finding(name, "pass", f"names every file of {where}")
    if archived is not None:
        yield from _archived(path.with_name(f"{lock.name}{ARCHIVE}"), archived)


def _digest(lock: Lock) -> str:
    return digest.of_bytes(locks.built(lock), "sha256").hex


def _archived(path: Path, named: str) -> Iterator[Finding]:
    """The archive that an attestation names, beside it."""
    if not path.is_file():
        remedy = "verify both where they are together"
        yield _finding(path.name, "not checkable", "is named, and is not beside it", remedy)
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
            yield name, "is not of the release"
        elif name not in subjects:
            yield name, "is left out"
        elif subjects[name] != expected[name].sha256:
            yield name, "has another SHA-256"
