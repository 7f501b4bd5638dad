"""Sections of a page: a group's models, files and failures, context binaries, quantization loss."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Final
from urllib.parse import quote

from msgspec import Struct

from epctx.commands.inspect.inspection import BinaryFile
from epctx.commands.report import figures
from epctx.commands.report.figures import Cell, CheckRow, NumbersRow, group_label
from epctx.engine.report import BuildReport, GroupReport
from epctx.errors import EpctxError
from epctx.files.outputs import OutputFile, context_file
from epctx.quantization.report import QuantizeReport, TensorLoss
from epctx.stages.report import ModelReport
from epctx.text import size_words
from epctx.verification.findings import error_words, largest_error

_SYSTEMS: Final[tuple[type[PurePath], ...]] = (PurePosixPath, PureWindowsPath)


class Links(Struct, frozen=True, kw_only=True):
    """Makes links from a page to files.

    Attributes:
        folder: folder of the report; the group folders are below it.
        page: folder of the page.
    """

    folder: Path
    page: Path

    def to(self, *parts: str) -> str | None:
        """Return the link to a file below the report's folder.

        None if the file does not exist, or if a part is absolute, on a drive, or has `..` on some
        system. Special characters are quoted, including the colon, so that no name is taken for a
        URL scheme.
        """
        if any(_leads_elsewhere(part) for part in parts):
            return None
        path = self.folder.joinpath(*parts)
        try:
            if not path.is_file():
                return None
            relative = Path(os.path.relpath(path, self.page))
        except (OSError, ValueError):  # an invalid file name; on Windows, another drive
            return None
        return f"./{quote(os.fsencode(relative.as_posix()))}"


def _leads_elsewhere(part: str) -> bool:
    paths = [system(part) for system in _SYSTEMS]
    return any(path.anchor or ".." in path.parts for path in paths)


_BINARY_SUFFIX: Final = ".bin"


class ContextRow(Struct, frozen=True, kw_only=True):
    """A context binary.

    Attributes:
        group: `group@target`.
        models: models that use the binary; several models share it.
        binary: its content; None if the file is missing beside the report.
    """

    group: str
    file: OutputFile
    models: tuple[str, ...]
    binary: BinaryFile | None

    @property
    def separate(self) -> int | None:
        """Bytes of weights if each graph had its own copy; None if the format does not tell."""
        info = self.binary.info if self.binary else None
        if info is None or info.stored is None or info.saved is None:
            return None
        return info.stored + info.saved

    @property
    def saved(self) -> int | None:
        """Bytes of weights saved by sharing; None if the format does not tell."""
        info = self.binary.info if self.binary else None
        return info.saved if info is not None else None


def contexts(report: BuildReport, folder: Path) -> tuple[ContextRow, ...]:
    """Every context binary of a build. Identical binaries of several groups are read once.

    Args:
        folder: folder of the report, and of the outputs if they were not moved.
    """
    binaries: dict[str, BinaryFile | None] = {}
    return tuple(
        row for group in report.groups for row in _context_rows(group, report, folder, binaries)
    )


def saved_bytes(rows: tuple[ContextRow, ...]) -> int | None:
    """Bytes saved in all rows; None if no format tells."""
    sizes = [row.saved for row in rows if row.saved is not None]
    return sum(sizes) if sizes else None


def _context_rows(
    group: GroupReport, report: BuildReport, folder: Path, binaries: dict[str, BinaryFile | None]
) -> Iterator[ContextRow]:
    for file in group.files:
        if not file.name.endswith(_BINARY_SUFFIX):
            continue
        content = str(file.blake3)
        if content not in binaries and group.folder is not None:
            binaries[content] = _read_binary(folder / group.folder / file.name, file)
        yield ContextRow(
            group=group_label(group),
            file=file,
            models=_models_of(group, report, file.name),
            binary=binaries.get(content),
        )


def _read_binary(path: Path, file: OutputFile) -> BinaryFile | None:
    """Read a binary; None if it is missing or was replaced."""
    try:
        if path.stat().st_size != file.size:
            return None
        from epctx.commands.inspect import command  # this imports onnx

        return command.inspect(path).binary
    except (OSError, EpctxError):
        return None


def _models_of(group: GroupReport, report: BuildReport, name: str) -> tuple[str, ...]:
    locked = report.lock.groups.get(f"{group.target}/{group.group}") if report.lock else None
    for session in locked.session_groups.values() if locked else ():
        if name in session.outputs:
            return session.models
    return ()


LOSS_ROWS: Final = 20
"""Number of tensors that the page shows at first."""
LOSS_MOST: Final = 1000
"""Most tensors in the page; the report has all."""
PLOT_WIDTH: Final = 720
PLOT_HEIGHT: Final = 120
_COLUMNS: Final = 240
_WIDEST: Final = 24
_DECIBELS: Final = (0.0, 100.0)
"""Range of the plot in decibels; values beyond it are drawn at its edge."""
_NAMED: Final = 3


class Column(Struct, frozen=True, kw_only=True):
    """Column of the plot, in pixels; `words` describes the first of its adjacent tensors."""

    x: float
    width: float
    height: float
    words: str
    output: bool


class Plot(Struct, frozen=True, kw_only=True):
    """Tensors by their loss, the worst first; `words` has the same content as text.

    Attributes:
        lines: height of each grid line, and its value in decibels.
    """

    columns: tuple[Column, ...]
    lines: tuple[tuple[float, int], ...]
    words: str


class Warned(Struct, frozen=True, kw_only=True):
    """Warning about a quantized model, and its remedy."""

    what: str
    remedy: str


def quantize_summary(report: QuantizeReport) -> str:
    """Summarize in one line how a model was quantized."""
    types = f"activations {report.activations or 'float'}, weights {report.weights}"
    samples = (
        f"{report.samples} {'RANDOM ' if report.random else ''}sample{'s' * (report.samples != 1)}"
    )
    calibrated = f"{samples}, " if report.activations is not None else ""
    sizes = f"{size_words(report.float_size)} -> {size_words(report.size)}"
    measured = [each for each in report.outputs if each.sqnr is not None]
    worst = min(measured, key=lambda each: each.sqnr or 0.0, default=None)
    least = "" if worst is None else f", output {worst.name!r} {worst.sqnr:.1f} dB"
    nodes = f"{report.quantized} of {report.nodes} nodes"
    return f"{report.preset}: {types}, {calibrated}{nodes}, {sizes}{least}"


def quantize_warnings(report: QuantizeReport) -> list[Warned]:
    """Warnings that a user should read before using the model."""
    warnings: list[Warned] = []
    real = "give inputs like the real ones, some hundred, with `quantize.calibration.files`"
    if report.random and report.activations is not None:
        warnings.append(Warned(what="its ranges are of RANDOM samples", remedy=real))
    elif report.samples == 1:
        warnings.append(Warned(what="its ranges are of a single sample", remedy=real))
    if report.limited and report.range_floor is None:
        warnings.append(
            Warned(
                what=f"masks leave nothing of the other values of {loss_names(report.limited)}",
                remedy="set `quantize.range_floor: -100`",
            )
        )
    return warnings


def loss_names(names: Sequence[str]) -> str:
    """List the first names, and count the rest."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(map(repr, names[:_NAMED]))}{more}"


def loss_rows(report: QuantizeReport) -> tuple[TensorLoss, ...]:
    """Tensors of a quantized model, the worst first, including outputs."""
    every = [each for each in (*report.outputs, *report.tensors) if each.sqnr is not None]
    return tuple(sorted(every, key=lambda each: (each.sqnr or 0.0, each.name)))


def loss_plot(report: QuantizeReport) -> Plot | None:
    """Plot the tensors by their loss; None if there is nothing to draw."""
    return drawn_losses(loss_rows(report), {each.name for each in report.outputs})


def drawn_losses(every: Sequence[TensorLoss], outputs: Set[str]) -> Plot | None:
    """Plot the tensors whose loss is known, in this order; None if there are none."""
    if not every:
        return None
    step = -(-len(every) // _COLUMNS)
    stretches = [every[start : start + step] for start in range(0, len(every), step)]
    width = min(PLOT_WIDTH / len(stretches), _WIDEST)
    by_loss = sorted(every, key=lambda each: each.sqnr or 0.0)
    return Plot(
        columns=tuple(
            _column(number * width, width, stretch, outputs)
            for number, stretch in enumerate(stretches)
        ),
        lines=tuple((round(PLOT_HEIGHT - _height(level), 1), level) for level in (20, 40, 60, 80)),
        words=f"{len(every):,} tensors from {by_loss[0].sqnr:.1f} dB ({by_loss[0].name}) "
        f"to {by_loss[-1].sqnr:.1f} dB",
    )


def _column(x: float, width: float, stretch: Sequence[TensorLoss], outputs: Set[str]) -> Column:
    shown = next((each for each in stretch if each.name in outputs), stretch[0])
    more = f" and {len(stretch) - 1} more" if len(stretch) > 1 else ""
    return Column(
        x=round(x, 2),
        width=round(max(width - 1, width / 2), 2),
        height=round(max(_height(shown.sqnr or 0.0), 1.0), 1),
        words=f"{shown.name} ({shown.op_type or 'weight'}): {shown.sqnr:.1f} dB{more}",
        output=shown.name in outputs,
    )


def _height(decibels: float) -> float:
    least, most = _DECIBELS
    return PLOT_HEIGHT * (min(max(decibels, least), most) - least) / (most - least)


FEW: Final = 3
"""A build with at most this many groups shows all of them open."""
OPEN: Final = 5
"""Most failed groups that are shown open in a larger build."""
SHOWN: Final = 20
"""Most outputs in a group's section; the table of all groups has the rest."""


class LinkedFile(Struct, frozen=True, kw_only=True):
    """Published file. `name` is relative to the group's folder; `link` is None if it is missing."""

    name: str
    file: OutputFile
    link: str | None


class BucketRow(Struct, frozen=True, kw_only=True):
    """Bucket of a model, in words: its sizes, the EPs' share, its largest error."""

    name: str
    sizes: str
    nodes: int
    percent: str
    error: str


class Entry(Struct, frozen=True, kw_only=True):
    """Model of the manifest in a group's section.

    Attributes:
        name: name of a model with buckets; empty for a model without buckets.
        buckets: a row for each bucket.
        models: built models by their position in the group, from 1.
    """

    name: str = ""
    buckets: tuple[BucketRow, ...] = ()
    models: dict[int, ModelReport]


class Section(Struct, frozen=True, kw_only=True):
    """Section of a group.

    Attributes:
        number: position of the group in the report, from 1.
        open: True if the section is open at first.
        drawn: True if the graph of its first model is shown when the section is open.
        numbers: numbers of its outputs, the worst first.
        checks: checks that did not pass, and notes; all checks of a failed group.
        passed: number of checks that passed, without notes.
        log: link to the whole log; None if the log is missing.
    """

    number: int
    cell: Cell
    open: bool
    drawn: bool
    numbers: tuple[NumbersRow, ...]
    checks: tuple[CheckRow, ...]
    passed: int
    files: tuple[LinkedFile, ...]
    log: str | None

    @property
    def group(self) -> GroupReport:
        """Report of the group."""
        return self.cell.group

    @property
    def entries(self) -> list[Entry]:
        """Models of the group, in order; the buckets of a model are one entry."""
        owners = {name: model for model, each in self.group.buckets.items() for name in each}
        models_by_entry: dict[tuple[str, str], dict[int, ModelReport]] = {}
        for number, model in enumerate(self.group.models, 1):
            name = owners.get(model.name, "")
            models_by_entry.setdefault((name, "" if name else model.name), {})[number] = model
        return [
            Entry(name=name, buckets=tuple(_buckets(self.group, name, models)), models=models)
            for (name, _), models in models_by_entry.items()
        ]


def sections(report: BuildReport, eps: Sequence[str], links: Links) -> tuple[Section, ...]:
    """Section of every group, in the report's order.

    The first failed groups are open. If the build has few groups, all are open.
    """
    numbers = range(1, len(report.groups) + 1)
    opened = [n for n in numbers if report.groups[n - 1].state == "failed"][:OPEN]
    drawn = opened[:1]
    if len(numbers) <= FEW:
        opened = drawn = list(numbers)
    return tuple(
        _section(n, group, eps, links, open=n in opened, drawn=n in drawn or n not in opened)
        for n, group in enumerate(report.groups, 1)
    )


def _section(
    number: int, group: GroupReport, eps: Sequence[str], links: Links, *, open: bool, drawn: bool
) -> Section:
    checks = figures.check_rows([group])
    open_ones = tuple(row for row in checks if row.finding.outcome != "pass" or row.finding.is_note)
    return Section(
        number=number,
        cell=figures.cell(group, eps),
        open=open,
        drawn=drawn,
        numbers=figures.number_rows([group]),
        checks=checks if group.state == "failed" else open_ones,
        passed=len(checks) - len(open_ones),
        files=tuple(_files(group, links)),
        log=links.to(*group.log.file.split("/")) if group.log else None,
    )


def _buckets(
    group: GroupReport, name: str, models: Mapping[int, ModelReport]
) -> Iterator[BucketRow]:
    """Rows of a model's buckets; none for a model without buckets."""
    numbers = group.verify.numbers if group.verify is not None else ()
    for model in models.values() if name else ():
        results = [each for each in numbers if each.model == context_file(model.name)]
        on_eps = sum(part.nodes for part in model.partitions)
        sizes = group.buckets[name][model.name].items()
        yield BucketRow(
            name=model.name,
            sizes=", ".join(f"{dimension} {size}" for dimension, size in sizes),
            nodes=model.nodes,
            percent=figures.percent(on_eps, model.nodes),
            error=error_words(largest_error(results)),
        )


def _files(group: GroupReport, links: Links) -> list[LinkedFile]:
    files = [(file.name, file) for file in group.files]
    files += [(f"golden/{file.name}", file) for file in group.golden]
    return [
        LinkedFile(
            name=name,
            file=file,
            link=links.to(group.folder, name) if group.folder is not None else None,
        )
        for name, file in files
    ]
