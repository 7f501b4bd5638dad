"""What the context binaries say of themselves, where they still lie beside the report."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.commands.inspect.inspection import BinaryFile
from epctx.commands.report.tables import label
from epctx.engine.report import BuildReport, GroupReport
from epctx.errors import EpctxError
from epctx.files.outputs import OutputFile

SUFFIX: Final = ".bin"


class ContextRow(Struct, frozen=True, kw_only=True):
    """A context binary.

    Attributes:
        group: `group@target`.
        models: that use it; more than one share it.
        found: what is in it; None: it is not beside the report.
    """

    group: str
    file: OutputFile
    models: tuple[str, ...]
    found: BinaryFile | None

    @property
    def separate(self) -> int | None:
        """Bytes of weights if each of its graphs had its own; None: the format does not tell."""
        info = self.found.info if self.found else None
        if info is None or info.stored is None or info.saved is None:
            return None
        return info.stored + info.saved

    @property
    def saved(self) -> int | None:
        """Bytes of weights that are there once instead of several times, likewise."""
        info = self.found.info if self.found else None
        return info.saved if info is not None else None


def contexts(report: BuildReport, folder: Path) -> tuple[ContextRow, ...]:
    """Every context binary of a build. Those that are the same in several groups are read once.

    Args:
        folder: the report's: that of the outputs, where they have not been moved.
    """
    known: dict[str, BinaryFile | None] = {}
    return tuple(row for group in report.groups for row in _of(group, report, folder, known))


def saved(rows: tuple[ContextRow, ...]) -> int | None:
    """Bytes saved in all of them; None: no format tells."""
    told = [row.saved for row in rows if row.saved is not None]
    return sum(told) if told else None


def _of(
    group: GroupReport, report: BuildReport, folder: Path, known: dict[str, BinaryFile | None]
) -> Iterator[ContextRow]:
    for file in group.files:
        if not file.name.endswith(SUFFIX):
            continue
        content = str(file.blake3)
        if content not in known and group.folder is not None:
            known[content] = _read(folder / group.folder / file.name, file)
        yield ContextRow(
            group=label(group),
            file=file,
            models=_models(group, report, file.name),
            found=known.get(content),
        )


def _read(path: Path, file: OutputFile) -> BinaryFile | None:
    """What is in a binary; None: it is not there, or it is another one by now."""
    try:
        if path.stat().st_size != file.size:
            return None
        from epctx.commands.inspect import command  # which imports onnx

        return command.inspect(path).binary
    except (OSError, EpctxError):
        return None


def _models(group: GroupReport, report: BuildReport, name: str) -> tuple[str, ...]:
    locked = report.lock.groups.get(f"{group.target}/{group.group}") if report.lock else None
    for session in locked.session_groups.values() if locked else ():
        if name in session.outputs:
            return session.models
    return ()
