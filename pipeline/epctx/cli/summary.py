"""Print a build's report: a row per group, unchecked items, and the paths of outputs."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from epctx.cli import matrix
from epctx.cli.render import UI, filled
from epctx.cli.standing import STATE_STYLES
from epctx.commands.report import figures, sections
from epctx.engine.report import BuildReport, GroupReport, ModelReport, Placement
from epctx.errors import EpctxError, Failure
from epctx.text import size_words
from epctx.verification.findings import GENERATED, error_words, largest_error

RIGHT = (
    "models",
    "files",
    "size",
    "on EPs",
    "EPContext",
    "default EP",
    "crossings",
    "checks",
    "max error",
    "actions",
)

MOST_KINDS = 3
"""Maximum kinds of ops on the default EP, with their reasons, to list without `-v`."""


def summary(ui: UI, report: BuildReport, out: Path) -> None:
    """Print the groups with their checks; with -v also the details of each model."""
    if ui.json or ui.quiet:
        return
    if not ui.verbose and nothing_done(report):
        words, *others = nothing(report, out)
        ui.print(Text(words, style="green"), *map(Text, others), *_release(report, out))
        return
    if matrix.is_worth(report.groups) and not ui.verbose:
        ui.print(matrix.matrix(report.groups, _row))
    else:
        ui.print(_rows(report))
    if ui.verbose:
        ui.print(*(text for group in report.groups for text in _details(group)))
    else:
        ui.print(*_stayed(report.groups))
    ui.print(*_guessed(report.groups))
    ui.print(*_quantized(report.groups), *_unstable(report.groups))
    ui.print(*_remote(report))
    ui.print(*_unchecked(report.groups, notes=True))
    ui.print(*_unchecked(report.groups), _where(report, out), *_release(report, out))


def _rows(report: BuildReport) -> Table:
    return filled(*cells(report), right=RIGHT)


def cells(report: BuildReport) -> tuple[tuple[str, ...], list[list[RenderableType]]]:
    """Return the headings of the table, and one row per group."""
    headings = ("group", "state", *RIGHT)
    rows = [_row(group) for group in report.groups]
    for row, group in zip(rows, report.groups, strict=True):
        row["actions"] = "" if report.remote is None else figures.origins(group.actions)
    return headings, [[row.get(heading, "") for heading in headings] for row in rows]


def nothing_done(report: BuildReport) -> bool:
    """Tell whether everything was up to date."""
    return all(group.state == "up to date" for group in report.groups)


def nothing(report: BuildReport, out: Path) -> list[str]:
    """Return the lines for a build that had nothing to do, with the first unchecked item."""
    count, unchecked = len(report.groups), [str(text) for text in _unchecked(report.groups)]
    if unchecked:
        verified = [(_label(group), group.verify) for group in report.groups if group.verify]
        unrun = (f"not checked: {label}: {each.unrun}" for label, each in verified if each.unrun)
        more = f" (and {len(unchecked) - 1} more, see -v)" if unchecked[1:] else ""
        unchecked[0] = f"{next(unrun, unchecked[0].splitlines()[0])}{more}"
    place = (out / report.name).as_posix()
    return [
        f"nothing to do, {count} group{'s are' if count != 1 else ' is'} up to date",
        f"{place}/  report: {place}.build.json",
        *unchecked[:1],
    ]


def failures(report: BuildReport) -> Iterator[EpctxError]:
    """Yield the failures in manifest order, equal failures of several groups once."""
    failed = ((_label(group), group.failure) for group in report.groups)
    return distinct((label, failure) for label, failure in failed if failure is not None)


def distinct(failed: Iterable[tuple[str, Failure]]) -> Iterator[EpctxError]:
    """Yield the failures of groups as errors, equal failures once; `failed` has GROUP@TARGET and
    failure.
    """
    groups: dict[Failure, list[str]] = {}
    for label, failure in failed:
        groups.setdefault(failure, []).append(label)
    for each, labels in groups.items():
        yield EpctxError.of(dataclasses.replace(each, group=", ".join(labels)))


def _label(group: GroupReport) -> str:
    return f"{group.group}@{group.target}"


def _row(group: GroupReport) -> dict[str, RenderableType]:
    row: dict[str, RenderableType] = {
        "group": _label(group),
        "state": Text(group.state, style=STATE_STYLES[group.state]),
    }
    if group.folder is None:
        return row
    taken = sum(part.nodes for model in group.models for part in model.partitions)
    row |= {
        "models": group.counted,
        "files": str(len(group.files)),
        "size": size_words(sum(file.size for file in group.files)),
        "on EPs": f"{taken}/{sum(model.nodes for model in group.models)}",
    }
    placed = Placement.of_parts(model.placement for model in group.models)
    row["EPContext"] = str(placed.context_nodes or "")
    row["default EP"] = str(placed.default_nodes or "")
    row["crossings"] = str(placed.crossings or "")
    if group.verify is not None:
        passed = sum(finding.outcome == "pass" for finding in group.verify.findings)
        row |= {"checks": Text(f"{passed} ok", style="green"), "max error": _error(group)}
    return row


def _error(group: GroupReport) -> Text:
    """Return the largest error of an output, relative to its largest magnitude if that is not 0."""
    worst = largest_error(group.verify.numbers if group.verify is not None else ())
    return Text(error_words(worst), style="yellow" if worst is None else "")


def _stayed(groups: Iterable[GroupReport]) -> Iterator[Text]:
    """Yield the ops on the default EP, with reasons; equal lines of several groups once."""
    alike: dict[str, list[str]] = {}
    for group in groups:
        kinds = Counter(
            (node.op_type, node.reasons)
            for model in group.models
            for node in model.declined
            if node.reasons
        )
        most = kinds.most_common(MOST_KINDS)
        texts = [
            f"{count} {op} ({'; '.join(f'{ep}: {why}' for ep, why in reasons)})"
            for (op, reasons), count in most
        ]
        rest = kinds.total() - sum(count for _, count in most)
        if texts:
            more = f" and {rest} more, see -v" if rest else ""
            alike.setdefault(", ".join(texts) + more, []).append(_label(group))
    for what, labels in alike.items():
        yield Text.assemble(("on the default EP: ", "yellow"), (f"{_few(labels)}: ", "bold"), what)


def _quantized(groups: Iterable[GroupReport]) -> Iterator[Text]:
    """Yield avoidable losses of quantized models; equal losses of several models once."""
    alike: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for model in group.models:
            for warning in (
                sections.quantize_warnings(model.quantized) if model.quantized is not None else ()
            ):
                alike.setdefault((warning.what, warning.remedy), []).append(
                    f"{_label(group)}/{model.name}"
                )
    for (what, remedy), places in alike.items():
        text = Text.assemble(("quantized: ", "yellow"), (f"{_few(places)}: ", "bold"), what)
        yield text.append(f"\n  -> {remedy}", style="cyan")


def _guessed(groups: Iterable[GroupReport]) -> Iterator[Text]:
    """Yield the sizes that `epctx init` guessed; the error of a failed group names its own."""
    places: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for model, sizes in group.guessed.items() if group.failure is None else ():
            places.setdefault((model, sizes), []).append(_label(group))
    for (model, sizes), labels in places.items():
        head = ("guessed: ", "yellow"), (f"{_few(labels)}: {model}: ", "bold")
        text = Text.assemble(*head, f"{sizes}: these sizes are guesses of `epctx init`")
        yield text.append("\n  -> set yours, and remove their names from `guessed`", style="cyan")


def _unstable(groups: Iterable[GroupReport]) -> Iterator[Text]:
    """Yield the models whose bytes may differ from build to build."""
    for group in groups:
        for model in group.models:
            for why in model.unstable:
                place = (f"{_label(group)}/{model.name}: ", "bold")
                yield Text.assemble(("may not be reproducible: ", "yellow"), place, why)


def _few(places: Sequence[str]) -> str:
    several = f" and {len(places) - 2} more" if len(places) > 2 else ""
    return f"{', '.join(places[:2])}{several}"


def _remote(report: BuildReport) -> Iterator[Text]:
    """Yield the use of the shared cache, if there was any."""
    remote = report.remote
    if remote is not None:
        head = (
            f"shared cache {remote.url}".rstrip() + ": ",
            "yellow" if remote.refused else "bold",
        )
        yield Text.assemble(head, figures.remote_words(remote))


def _unchecked(groups: Iterable[GroupReport], *, notes: bool = False) -> Iterator[Text]:
    """Yield unchecked items with their reasons, or notes; equal reasons of several groups once."""
    subjects: dict[tuple[str, str], list[str]] = {}
    for group in groups:
        for finding in group.verify.findings if group.verify is not None else ():
            if finding.is_note if notes else finding.outcome == "not checkable":
                same = subjects.setdefault((finding.message, finding.remedy), [])
                same.append(f"{_label(group)}/{finding.subject}".removesuffix("/."))
    head = ("headroom: ", "bold") if notes else ("not checked: ", "yellow")
    for (message, remedy), places in subjects.items():
        text = Text.assemble(head, (f"{_few(places)}: ", "bold"), message)
        yield text.append(f"\n  -> {remedy}", style="cyan") if remedy else text


def _where(report: BuildReport, out: Path) -> Text:
    place = (out / report.name).as_posix()
    file = f"{place}.build.json"
    named = f"report: {file}" if Path(file).is_file() else "the report could not be written"
    took = f"in {report.seconds:.1f} s; {named}"
    published = any(group.folder is not None for group in report.groups)
    if not published:
        return Text(f"nothing was published, {took}", style="bold")
    return Text.assemble((f"{place}/", "bold"), f"  {took}")


def _release(report: BuildReport, out: Path) -> Iterator[Text]:
    """Yield the files of a release beside the groups."""
    count = sum(bool(group.golden) for group in report.groups)
    if count:
        size = size_words(sum(file.size for group in report.groups for file in group.golden))
        yield Text(f"golden inputs and outputs in {count} group{'s' * (count != 1)}, {size}")
    release = report.release
    for file in (
        (release.archive, release.attestation, release.signature) if release is not None else ()
    ):
        if file is not None:
            place = (out / file.name).as_posix()
            yield Text.assemble(
                (place, "bold"), f"  {size_words(file.size)}, SHA-256 {file.sha256.hex}"
            )


def _details(group: GroupReport) -> Iterator[Text]:
    for model in group.models:
        yield Text.assemble((f"{_label(group)}/{model.name}", "bold"))
        for line in _lines(model):
            yield Text(f"  {line}")
    for finding in group.verify.findings if group.verify is not None else ():
        if finding.check == GENERATED:
            yield Text(f"  {finding.subject}: inputs are {finding.message}")
        elif finding.check in ("coverage", "determinism") and finding.outcome == "pass":
            yield Text(f"  {finding.subject}: {finding.check}: {finding.message}")
    for each in group.verify.numbers if group.verify is not None else ():
        comparison = each.comparison
        numbers = (
            ("abs", comparison.max_abs),
            ("rel", comparison.max_rel),
            ("cosine", comparison.cosine),
            ("SQNR", comparison.sqnr),
            ("gain", comparison.gain),
            ("could have failed", comparison.checkable),
        )
        words = ", ".join(f"{name} {n:.6g}" for name, n in numbers if n is not None)
        yield Text(
            f"  {each.model}: output {each.output!r} ({each.input_set}, {each.inputs}, "
            f"{each.sessions}, against {each.right}): {words}"
        )
    if group.stages:
        spent: dict[str, float] = {}
        for stage in group.stages:
            spent[stage.stage] = spent.get(stage.stage, 0.0) + stage.end - stage.start
        words = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in spent.items())
        peak = f"; largest process {size_words(group.peak_memory)}" if group.peak_memory else ""
        yield Text(f"  {_label(group)}: {words}{peak}", style="dim")


def _lines(model: ModelReport) -> Iterator[str]:
    for note in model.notes:
        yield f"load: {note}"
    for record in model.passes:
        if record.changed:
            changes = ", ".join(f"{count} {kind}" for kind, count in record.changed.items())
            yield f"pass {record.name}: {changes}"
    if model.quantized is not None:
        yield f"quantized for {sections.quantize_summary(model.quantized)}"
        if model.quantized.bodies:
            yield f"bodies stay float: those of {sections.loss_names(model.quantized.bodies)}"
    yield from model.piece_lines
    for part in model.partitions:
        yield f"{part.provider}: {part.nodes} node{'s' * (part.nodes != 1)} in one partition"
    reasons: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for node in model.declined:
        reasons.setdefault(node.reasons, []).append(f"{node.op_type} {node.node!r}")
    for why, nodes in reasons.items():
        several = f" and {len(nodes) - 3} more" if len(nodes) > 3 else ""
        because = "; ".join(f"{ep}: {reason}" for ep, reason in why)
        yield f"default EP: {', '.join(nodes[:3])}{several}" + (f" ({because})" if because else "")
