"""`epctx report`: read a build report, check it, and write it as one HTML page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from epctx import codec, limits
from epctx.commands.report.figures import HISTOGRAM_NAMES, OnDevice
from epctx.engine.report import SCHEMA_VERSION, BuildReport
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files import atomic, filenames
from epctx.files.entries import read_document
from epctx.stages.report import ModelReport

_LONGEST: Final = 366 * 24 * 3600
"""Seconds in a year; no build takes longer."""


def objection(report: BuildReport) -> str | None:
    """Find the first value that no build can write; None if all values are plausible."""
    return next(_objections(report), None)


def _objections(report: BuildReport) -> Iterator[str]:
    if problem := filenames.problem(report.name):
        yield f"the name {problem}"
    if not 0 <= report.seconds <= _LONGEST:
        yield f"its {report.seconds:g} s are not a plausible build time"
    release = report.release
    for file in (release.archive, release.attestation) if release is not None else ():
        if file is not None and (problem := _no_file(file.name)):
            yield f"the name of a file of its release {problem}"
    for number, group in enumerate(report.groups):
        for part in group.folder.split("/") if group.folder is not None else ():
            if problem := filenames.problem(part):
                yield f"groups[{number}]: a part of its folder {problem}"
        if group.log is not None and (problem := _no_place(group.log.file)):
            yield f"groups[{number}]: the path of its log {problem}"
        for file in (*group.files, *group.golden):
            if problem := _no_file(file.name):
                yield f"groups[{number}]: the name of a file {problem}"
        if not all(0 <= time.start <= time.end <= _LONGEST for time in group.stages):
            yield f"groups[{number}]: a stage has no plausible start or end"
        if _is_deep(group.manifest):
            yield (f"groups[{number}]: its manifest is nested deeper than {limits.MANIFEST_DEPTH}")
        for numbers in group.verify.numbers if group.verify else ():
            counts = numbers.comparison.histogram
            if counts and (len(counts) != len(HISTOGRAM_NAMES) or min(counts) < 0):
                yield f"groups[{number}]: a histogram has {len(counts)} counts, or one below 0"
        for index, model in enumerate(group.models):
            for what in _of_model(model):
                yield f"groups[{number}].models[{index}]: {what}"


def _no_file(name: str) -> str | None:
    return filenames.problem(name, limit=filenames.MAX_FILE_LENGTH)


def _is_deep(value: object) -> bool:
    """Tell whether a value is nested deeper than a manifest may be."""
    level = [value]
    for _ in range(limits.MANIFEST_DEPTH.value + 1):
        level = [inner for outer in level for inner in _inside(outer)]
        if not level:
            return False
    return True


def _inside(value: object) -> list[object]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, list | tuple) else []


def _no_place(path: str) -> str | None:
    """Reason why a path may lead out of the report's folder on some system; None if it cannot."""
    if any(part in ("", ".", "..") for part in path.split("/")):
        return "leaves the report's folder"
    if any(character in "\\:" or not character.isprintable() for character in path):
        return "has a character that no path of a log has"
    return None


def _of_model(model: ModelReport) -> Iterator[str]:
    counts = [model.nodes, *(part.nodes for part in model.partitions)]
    if min(counts) < 0 or sum(counts[1:]) > model.nodes:
        yield "its partitions have more nodes than it has"
    outline = model.outline
    if outline is None:
        return
    count = len(outline.names)
    if not len(outline.ops) == len(outline.owners) == len(outline.predecessors) == count:
        yield "the lists of its outline have different lengths"
    if not all(0 <= op < len(outline.op_types) for op in outline.ops):
        yield "a node of its outline has no operator"
    if not all(-1 <= owner < len(model.partitions) for owner in outline.owners):
        yield "a node of its outline is in no partition"
    if not all(0 <= o < node for node, before in enumerate(outline.predecessors) for o in before):
        yield "its outline is not in topological order"


SUFFIX = ".build.json"
_DEPTH = 2
"""Levels from a group's output folder up to the folder that the report is named after."""
_LISTED = 5
"""Number of reports that a message lists."""
_AGAIN = "build again with this epctx; unchanged parts are not built again"


def read(path: Path) -> BuildReport:
    """Read a build report.

    Raises:
        UsageError: the report does not exist, or is not one of this version of epctx.
    """
    try:
        report = codec.decode(_content(path), BuildReport)
    except msgspec.DecodeError as error:
        raise _no_report(path, str(error)) from error
    if report.schema_version != SCHEMA_VERSION:
        raise UsageError(
            f"has version {report.schema_version}, but this epctx reads {SCHEMA_VERSION}",
            file=path.as_posix(),
            remedy=_AGAIN,
        )
    why = objection(report)
    if why is not None:
        raise _no_report(path, why)
    return report


def _content(path: Path) -> bytes:
    most = limits.REPORT_BYTES
    remedy = "name a manifest, or the report of a build: dist/<name>.build.json"
    with UsageError.if_refused(
        "cannot be read", file=path.as_posix(), remedy=remedy, code=Code.NO_SUCH_PATH
    ):
        content = read_document(path, most.value)
    if len(content) > most.value:
        what = f"is larger than {most}"
        raise UsageError(what, file=path.as_posix(), remedy=f"{remedy}; {most.remedy}")
    return content


def _no_report(path: Path, why: str) -> UsageError:
    return UsageError(
        "is not a build report of this version of epctx",
        file=path.as_posix(),
        why=why,
        remedy=f"name a report that `epctx build` wrote, or {_AGAIN}",
    )


def of_manifest(name: str, out: Path, manifest: Path) -> Path:
    """Path of the report of the last build of a manifest with this name into `out`.

    Raises:
        UsageError: no report of the manifest exists there.
    """
    path = out / f"{name}{SUFFIX}"
    if not path.is_file():
        raise UsageError(
            "was not built yet",
            file=manifest.as_posix(),
            why=f"{path.as_posix()} does not exist",
            remedy=f"run `epctx build {manifest.as_posix()}`, or name the report where it is",
        )
    return path


def of_folder(folder: Path) -> Path:
    """Path of the report for an output folder.

    The folder is `dist` with one build, `dist/<name>`, or a folder inside of that.

    Raises:
        UsageError: no report or several reports were found.
    """
    resolved = folder.resolve() if ".." in folder.parts else folder.absolute()
    for place in (resolved, *resolved.parents[:_DEPTH]):
        report = Path(f"{place}{SUFFIX}")
        if report.is_file():
            current = Path.cwd()
            relative = not folder.is_absolute() and report.is_relative_to(current)
            return report.relative_to(current) if relative else report
    reports = sorted(folder.glob(f"*{SUFFIX}"))
    if len(reports) == 1:
        return reports[0]
    shown = folder.as_posix()
    if reports:
        names = ", ".join(each.as_posix() for each in reports[:_LISTED])
        what, remedy = f"has the reports of {len(reports)} builds", f"name one of them: {names}"
    else:
        what, remedy = "has no build report", "name a manifest that was built, or its report"
    raise UsageError(what, file=shown, remedy=remedy)


def page_of(path: Path) -> Path:
    """Return the default path of a report's page: beside the report."""
    return path.with_name(f"{path.name.removesuffix('.json').removesuffix('.build')}.report.html")


def write(path: Path, page: Path, device: OnDevice | None = None) -> BuildReport:
    """Write the page of the report at `path`, as described in `api.report`."""
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.report.page import render

    report = read(path)
    atomic.replace(page, render(report, path.parent, page.parent, device).encode())
    return report
