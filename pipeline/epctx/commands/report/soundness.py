"""What a build report must hold beyond its form, before a page is drawn of it or files are read.

A report is a file that anybody may have written: its names become paths, its numbers places in
lists.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from epctx import limits
from epctx.commands.report.histogram import NAMES
from epctx.engine.report import BuildReport
from epctx.files import filenames
from epctx.stages.report import ModelReport

_LONGEST: Final = 366 * 24 * 3600
"""Seconds that no build takes: a year."""


def objection(report: BuildReport) -> str | None:
    """The first thing that no build writes; None: there is none."""
    return next(_objections(report), None)


def _objections(report: BuildReport) -> Iterator[str]:
    if problem := filenames.problem(report.name):
        yield f"the name {problem}"
    if not 0 <= report.seconds <= _LONGEST:
        yield f"its {report.seconds:g} s are no time that a build takes"
    made = report.release
    for file in (made.archive, made.attestation) if made is not None else ():
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
            yield f"groups[{number}]: a stage begins or ends at no time of a build"
        if _is_deep(group.manifest):
            yield (
                f"groups[{number}]: what its manifest says is nested deeper than "
                f"{limits.MANIFEST_DEPTH}"
            )
        for found in group.verify.numbers if group.verify else ():
            counts = found.comparison.histogram
            if counts and (len(counts) != len(NAMES) or min(counts) < 0):
                yield f"groups[{number}]: a histogram has {len(counts)} counts, or one below 0"
        for place, model in enumerate(group.models):
            for what in _of_model(model):
                yield f"groups[{number}].models[{place}]: {what}"


def _no_file(name: str) -> str | None:
    return filenames.problem(name, limit=filenames.MAX_FILE_LENGTH)


def _is_deep(value: object) -> bool:
    """Whether a value is nested deeper than a manifest may be; lists and mappings are levels."""
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
    """What keeps a path from lying below the report's folder, on every system."""
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
        yield "the lists of its outline are of several lengths"
    if not all(0 <= op < len(outline.op_types) for op in outline.ops):
        yield "a node of its outline has no operator"
    if not all(-1 <= owner < len(model.partitions) for owner in outline.owners):
        yield "a node of its outline is in no partition"
    if not all(0 <= o < node for node, before in enumerate(outline.predecessors) for o in before):
        yield "its outline is in no topological order"
