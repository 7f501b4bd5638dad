"""What is verified out of a registry: pulled into a folder that goes afterwards."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.commands.pull import command
from epctx.commands.push import contents
from epctx.engine.output.place import PACKAGE
from epctx.files.digest import parsed
from epctx.lockfile.types import Lock
from epctx.oci import reference as references
from epctx.verification.findings import Finding, FolderReport, VerifyReport

_finding: Final = partial(Finding, "integrity")
_CHANGED: Final = "do not use it: push what the lock is of, or name its digest, @sha256:…"


class Fetched(Struct, frozen=True, kw_only=True):
    """What is verified.

    Attributes:
        paths: those that were named, and folders in the place of references.
        digests: of the manifest of each reference, `sha256:…`.
        folders: where each of them is for now.
        attestations: those that came with each, by name.
    """

    paths: tuple[Path, ...]
    digests: Mapping[str, str]
    folders: Mapping[str, Path]
    attestations: Mapping[str, Mapping[str, bytes]]

    @property
    def attached(self) -> frozenset[Path]:
        """The files of the attestations, beside the artifacts' folders."""
        return frozenset(
            self.folders[name].with_name(file)
            for name, files in self.attestations.items()
            for file in files
        )

    def findings(self, lock: Lock | None, where: str) -> list[FolderReport]:
        """What is told of artifacts as a whole."""
        return [
            FolderReport(folder=name, findings=tuple(self._of(name, lock, where)))
            for name in self.digests
        ]

    def _of(self, name: str, lock: Lock | None, where: str) -> Iterator[Finding]:
        own = self.digests[name]
        yield _finding("registry", ".", "pass", f"is {own}, to the byte")
        for file, content in self.attestations[name].items():
            if contents.names(content, parsed(own, "sha256")):
                yield _finding("attestation", file, "pass", "names this artifact")
            else:
                yield _finding("attestation", file, "fail", "is of another artifact", _CHANGED)
        if lock is not None and lock.oci and (self.folders[name] / "manifest.json").is_file():
            if own in lock.oci.values():
                yield _finding("lock", ".", "pass", f"is the artifact of {where}")
            else:
                yield _finding("lock", ".", "fail", f"is not the artifact of {where}", _CHANGED)

    def told(self, report: VerifyReport) -> VerifyReport:
        """A report in which references stand, and not where they are for now."""
        names = {folder.parent.as_posix(): name for name, folder in self.folders.items()}
        return replace(report, folders=tuple(_told(each, names) for each in report.folders))


def _told(report: FolderReport, names: Mapping[str, str]) -> FolderReport:
    for folder, name in names.items():
        if report.folder.startswith(folder):
            return replace(report, folder=name + report.folder.removeprefix(folder))
    return report


@contextlib.contextmanager
def fetched(named: Sequence[Path | str], *, insecure: bool, name: str | None) -> Iterator[Fetched]:
    """What was named, with what is in registries pulled.

    Args:
        named: paths, and references as texts.
        insecure: registries speak plain HTTP.
        name: of the manifest that they are of, by the lock; None: it is not known.

    Raises:
        EpctxError: as `commands.pull.command.run`.
    """
    paths: list[Path] = []
    digests, folders, attestations = {}, {}, {}
    with contextlib.ExitStack() as stack:
        for each in named:
            if isinstance(each, Path):
                paths.append(each)
                continue
            place = stack.enter_context(tempfile.TemporaryDirectory(prefix="epctx-verify-"))
            folder = Path(place).resolve() / "of" / (name or "package")
            folder.parent.mkdir()
            reference = references.parse(each)
            report = command.run(reference, folder, insecure=insecure, listener=lambda e: None)
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
