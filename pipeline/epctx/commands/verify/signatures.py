"""Check signatures against the trusted keys, before anything else opens a folder."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import limits
from epctx.commands.verify.folders import reported, words
from epctx.files import listing
from epctx.files.entries import open_entry
from epctx.files.outputs import SIGNATURE
from epctx.signing import oms
from epctx.signing.keys import Refused, Trusted
from epctx.verification.findings import Finding, FolderReport

_finding: Final = partial(Finding, "signature")
_CHANGED: Final = "do not ship it, and do not run it: get it again from whoever signed it"
_UNSIGNED: Final = (
    "name the folder that was signed, the one with model.sig in it; or sign it: `epctx sign`"
)
_NOBODY: Final = "name the trusted signers with --trusted-key or --trusted-ca"


class Judged(Struct, frozen=True, kw_only=True):
    """Findings about signatures.

    Attributes:
        reports: report of each folder that is signed, or should be.
        refused: folders whose other content must not be read.
        rest: entries outside of groups, packages and kits that may be checked further.
    """

    reports: tuple[FolderReport, ...]
    refused: frozenset[Path]
    rest: tuple[Path, ...]

    def admits(self, folder: Path) -> bool:
        """Tell whether a folder may be opened."""
        return self.refused.isdisjoint((folder, *folder.parents))


def judge(
    named: Sequence[Path],
    folders: Mapping[Path, str],
    rest: Iterable[Path],
    trusted: Trusted | None,
) -> Judged:
    """Check the signatures in or below the given folders.

    Args:
        named: paths to verify, as typed: folders, models, archives, attestations.
        folders: absolute folders of groups, packages and kits in them, with their names in the
            report.
        rest: all other entries in the given folders.
        trusted: accepted signers; None if no signature is required.
    """
    signed = {place.resolve(): words(place) for path in named for place in _signed(path)}
    places = {path: path.parent.resolve() / path.name for path in rest}
    signatures = {place / SIGNATURE for place in signed}
    entries = [path for path, place in places.items() if place not in signatures]
    if trusted is None:
        reports = [_report(label, [_no_key_trusted()]) for label in signed.values()]
        return Judged(reports=tuple(reports), refused=frozenset(), rest=tuple(entries))
    judged = {place: _report(label, _check(place, trusted)) for place, label in signed.items()}
    for folder, label in folders.items():
        if not any(_covers(place, folder) for place in signed):
            judged[folder] = _report(label, [_unsigned(".")])
    refused = {p for p, r in judged.items() if any(f.outcome == "fail" for f in r.findings)}
    unsigned = [each for each in entries if not any(_covers(p, places[each]) for p in signed)]
    return Judged(
        reports=(*judged.values(), *reported(unsigned, _unsigned)),
        refused=frozenset(refused.union(places[each] for each in unsigned)),
        rest=tuple(each for each in entries if each not in unsigned),
    )


def _covers(place: Path, folder: Path) -> bool:
    """Tell whether a signature in `place` covers a folder."""
    if not folder.is_relative_to(place):
        return False
    return not {*folder.relative_to(place).parts[:1]} & {*oms.IGNORED}


def _report(label: str, findings: Iterable[Finding]) -> FolderReport:
    return FolderReport(folder=label, findings=tuple(findings))


def _signed(path: Path) -> Iterator[Path]:
    """Outermost folders with a signature, at or below a folder; for a model, its own folder."""
    if not path.is_dir():
        path = path.parent
        yield from [path] if _has(path) else []
        return
    if _has(path):
        yield path
        return
    inside = set[Path]()

    def into(folder: Path) -> bool:
        if _has(folder):
            inside.add(folder)
        return folder not in inside

    for _ in listing.below(path, into=into):
        pass
    yield from sorted(inside)


def _has(folder: Path) -> bool:
    return os.path.lexists(folder / SIGNATURE)


def _no_key_trusted() -> Finding:
    message = "its signer is not checked: no key is trusted"
    return _finding("signer", SIGNATURE, "not checkable", message, _NOBODY)


def _unsigned(subject: str) -> Finding:
    message = f"is not signed: no {SIGNATURE} covers it"
    return _finding("signed", subject, "fail", message, _UNSIGNED)


def _check(folder: Path, trusted: Trusted) -> Iterator[Finding]:
    most = limits.SIGNATURE_BYTES
    try:
        with open_entry(folder / SIGNATURE) as stream:
            content = stream.read(most.value + 1)
        if len(content) > most.value:
            raise Refused(f"is larger than {most}")
        signer, files = oms.verify(content, trusted)
        digests = oms.folder_digests(folder)
    except Refused as error:
        yield _finding("signer", SIGNATURE, "fail", str(error), _CHANGED)
        return
    except OSError as error:
        message = f"cannot be read: {error.strerror or error}"
        yield _finding("signer", SIGNATURE, "fail", message, _CHANGED)
        return
    yield _finding("signer", SIGNATURE, "pass", f"is by {signer}")
    differing = dict(oms.differences(files, digests))
    for name, what in differing.items():
        yield _finding("signed", name, "fail", what, _CHANGED)
    if not differing:
        yield _finding("signed", ".", "pass", f"all {len(files)} files are as they were signed")
