"""Integrity: every file is read again, and has the digest in `SHA256SUMS` and in the lock.

Neither QNN nor OpenVINO checks what it loads: a flipped byte gives wrong results or a crash
(real-eps.md section 5). So this policy comes before any other opens a file.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from epctx import limits
from epctx.errors import ModelError
from epctx.files import digest, hashing, paths
from epctx.files.digest import Algorithm, Digest
from epctx.files.outputs import GOLDEN, SUMS, OutputFile
from epctx.files.regular import open_regular, require_bounded
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import GroupFolder
from epctx.verification.request import ExpectedFile

_finding: Final = partial(Finding, "integrity")
_LINE: Final = re.compile(r"(\\?)([0-9a-fA-F]{64}) [ *](.+)")
_CHANGED: Final = "do not ship it: build again, or restore the file from where it was released"
_GOLDEN: Final = (
    "copy them again from where they were released, or write them with `epctx build --golden`"
)
_EXTRA: Final = "remove it, or build again: only built files belong in the folder"


@dataclass(frozen=True, kw_only=True)
class Integrity:
    """Compare every file with `SHA256SUMS` and the lock; fields as in `VerifyRequest`."""

    expected: tuple[ExpectedFile, ...] | None = None
    golden: tuple[ExpectedFile, ...] | None = None
    passed: frozenset[str] = frozenset()
    written: tuple[OutputFile, ...] = ()
    name: PolicyName = field(default="integrity", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Check every file of the folder, or the files of the requested models."""
        selected = None if folder.whole else _files_of_models(folder)
        if SUMS in folder.entries:
            listed, faults = read_sums(folder.path)
            yield from (_finding("sums", SUMS, "fail", fault, _CHANGED) for fault in faults)
            quick = self._quicker(self._open(listed))
            yield from _compare(folder, "sums", SUMS, quick, selected, self.passed)
        else:
            yield _finding(
                "sums",
                SUMS,
                "not checkable",
                f"there is no {SUMS}: epctx did not build this folder, or the file was left behind",
                "ship the file with the folder; it tells every file's SHA-256",
            )
        if self.expected is not None:
            expected = self._open(self.expected)
            yield from _compare(folder, "lock", "the lock", expected, selected, self.passed)
        if (folder.path / GOLDEN).is_dir():
            yield from self._golden(folder.path / GOLDEN)

    def _golden(self, folder: Path) -> Iterator[Finding]:
        """Check golden inputs and outputs against their own sums, and the lock."""
        name = f"{GOLDEN}/{SUMS}"
        faults = list(sums_of(folder))
        for subject, fault in faults:
            yield _finding("golden", f"{GOLDEN}/{subject}", "fail", fault, _GOLDEN)
        if not faults:
            yield _finding("golden", name, "pass", "the golden files are unchanged")
        if self.expected is None:
            return
        if self.golden is None:
            yield _finding("lock", name, "fail", "the lock lists no golden files", _GOLDEN)
            return
        listed = {each.name: each for each in self.golden}
        for entry in sorted({*paths.entries(folder), *listed}):
            subject = f"{GOLDEN}/{entry}"
            if entry not in listed:
                yield _finding("lock", subject, "fail", "is not in the lock", _EXTRA)
            elif (reason := _verdict(folder, listed[entry])) is not None:
                message = reason.removeprefix("was changed: ")
                yield _finding("lock", subject, "fail", f"{message} the lock", _GOLDEN)
            else:
                yield _finding("lock", subject, "pass", "its SHA-256 is that of the lock")

    def _open(self, listed: Sequence[ExpectedFile]) -> list[ExpectedFile]:
        return [each for each in listed if each.name not in self.passed]

    def _quicker(self, listed: Sequence[ExpectedFile]) -> list[ExpectedFile]:
        """Return the files, with BLAKE3 in place of SHA-256 for files whose listed SHA-256 is the
        one that the build wrote.
        """
        written = {(file.name, file.sha256): file for file in self.written}
        return [
            each
            if (file := written.get((each.name, each.digest))) is None
            else ExpectedFile(name=file.name, digest=file.blake3, size=file.size)
            for each in listed
        ]


def sums_of(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the faults of a folder of golden inputs and outputs: file name and fault."""
    listed, faults = read_sums(folder)
    yield from ((SUMS, fault) for fault in faults)
    for name in sorted(set(paths.entries(folder)) - {SUMS} - {each.name for each in listed}):
        yield name, f"is not in {SUMS}"
    for each in listed:
        reason = _verdict(folder, each)
        if reason is not None:
            yield each.name, f"{reason} {SUMS}"


def read_sums(
    folder: Path, *, nested: bool = False
) -> tuple[tuple[ExpectedFile, ...], tuple[str, ...]]:
    """Read `SHA256SUMS` in the format of `sha256sum`; return the listed files and the list's
    faults.

    Args:
        folder: folder of the list.
        nested: the list may name files in subfolders.
    """
    reason = paths.missing(folder, SUMS)
    if reason is None and (folder / SUMS).stat().st_size > limits.SUMS_BYTES.value:
        reason = f"it is larger than {limits.SUMS_BYTES}"
    if reason is not None:
        return (), (f"{SUMS} cannot be used: {reason}",)
    try:
        text = (folder / SUMS).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = (error.strerror if isinstance(error, OSError) else None) or error
        return (), (f"{SUMS} cannot be read: {why}",)
    listed: dict[str, ExpectedFile] = {}
    faults: list[str] = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line:
            continue
        match = _LINE.fullmatch(line)
        name = match.group(3) if match else ""
        if match is None:
            faults.append(f"line {number} is not `<64 hex digits>  <name>`")
        elif match.group(1) or paths.objection(name) or ("/" in name and not nested):
            kind = "path inside" if nested else "bare file name"
            faults.append(f"line {number} names {name!r}, which is not a {kind}")
        elif name in listed:
            faults.append(f"line {number} names {name!r} a second time")
        else:
            sha256 = Digest("sha256", match.group(2).lower())
            listed[name] = ExpectedFile(name=name, digest=sha256)
    return tuple(listed.values()), tuple(faults)


def _files_of_models(folder: GroupFolder) -> set[str]:
    return {name for model in folder.models for name in model.files} | {
        name for name, _ in folder.unreadable
    }


def _compare(
    folder: GroupFolder,
    check: str,
    record: str,
    expected: Sequence[ExpectedFile],
    selected: set[str] | None,
    passed: frozenset[str],
) -> Iterator[Finding]:
    listed = {each.name: each for each in expected}
    present = set(folder.entries) - passed
    if record == SUMS:
        present.discard(SUMS)
    if selected is not None:
        listed = {name: each for name, each in listed.items() if name in selected}
        present &= selected
    for name in sorted(listed.keys() - present):
        yield _finding(check, name, "fail", f"is missing, {record} lists it", _CHANGED)
    for name in sorted(present - listed.keys()):
        yield _finding(check, name, "fail", f"is not in {record}", _EXTRA)
    both = sorted(present & listed.keys())
    sizes = [listed[name].size for name in both]
    size = None if None in sizes else sum(filter(None, sizes))
    reasons = hashing.of_each(lambda n: _verdict(folder.path, listed[n]), both, size=size)
    for name, reason in reasons.items():
        algorithm = listed[name].digest.algorithm
        # SHA256SUMS has no BLAKE3, so a BLAKE3 comes from `written`.
        source = "the written file" if (record, algorithm) == (SUMS, "blake3") else record
        if reason is None:
            yield _finding(check, name, "pass", f"its {_NAMES[algorithm]} is that of {source}")
        else:
            if record != SUMS:  # the file or the record may be the changed one
                reason = reason.removeprefix("was changed: ")
            yield _finding(check, name, "fail", f"{reason} {source}", _CHANGED)


_NAMES: Final[dict[Algorithm, str]] = {"sha256": "SHA-256", "blake3": "BLAKE3"}


def _verdict(folder: Path, expected: ExpectedFile) -> str | None:
    reason = paths.missing(folder, expected.name)
    if reason is not None:
        return f"cannot be read: {reason}; it is in"
    try:
        _, descriptor = open_regular(folder / expected.name, where=expected.name)
        with os.fdopen(descriptor, "rb", buffering=0) as stream:
            size = os.fstat(descriptor).st_size
            if expected.size is not None and size != expected.size:
                return f"has {size} bytes, not the {expected.size} of"
            require_bounded(size, where=expected.name)
            actual = digest.of_stream(stream, expected.digest.algorithm)
    except OSError as error:
        return f"cannot be read: {error.strerror or error}; it is in"
    except ModelError as error:
        why = "" if error.why is None else f" ({error.why})"
        return f"cannot be read: {error.what}{why}; it is in"
    if actual == expected.digest:
        return None
    name = _NAMES[expected.digest.algorithm]
    return f"was changed: its {name} is {actual.hex[:16]}…, not {expected.digest.hex[:16]}… as in"
