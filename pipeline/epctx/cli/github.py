"""Errors as GitHub shows them: at their line in the manifest, in the checks of a change.

A workflow command is a line that the runner finds on stdout or stderr. Ours go to stderr, since
stdout is for results (docs.github.com, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.errors import EpctxError, InvalidManifest, Violation

if TYPE_CHECKING:
    from epctx.engine.report import BuildReport

_PLACE = re.compile(r"(?P<file>[^\n]+?):(?P<line>[1-9]\d*):(?P<column>[1-9]\d*)")


@dataclass(frozen=True, kw_only=True)
class Annotation:
    """What is shown, and where.

    Attributes:
        file: as the user named it; None: it is about no file.
        line: from 1; 0: the file as a whole.
        column: from 1; 0: the line as a whole.
    """

    message: str
    file: str | None = None
    line: int = 0
    column: int = 0


def wanted() -> bool:
    """Whether this is a step of a GitHub workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def error(told: EpctxError) -> None:
    """Annotate an error, each violation of a manifest by itself."""
    if isinstance(told, InvalidManifest):
        violations(told.violations)
    else:
        _write([_of_error(told)])


def violations(told: Iterable[Violation]) -> None:
    """Annotate what is wrong in manifests."""
    _write(_of_violation(each) for each in told)


def failures(report: BuildReport, manifest: Path) -> None:
    """Annotate the groups of a build that failed, where the manifest has them."""
    if wanted():
        _write(_of_groups(report, manifest))


def _of_violation(told: Violation) -> Annotation:
    subject = f"{told.path}: " if told.path else ""
    message = f"{subject}{told.what}\n-> {told.remedy}"
    return Annotation(message=message, file=told.file, line=told.line, column=told.column)


def _of_error(told: EpctxError) -> Annotation:
    place = _PLACE.fullmatch(told.where or "")
    if place is not None:
        message = _message(told.what, told.why, told.remedy)
        line, column = int(place["line"]), int(place["column"])
        return Annotation(message=message, file=place["file"], line=line, column=column)
    if told.where is not None and os.path.isfile(told.where):  # noqa: PTH113 - never raises
        return Annotation(message=_message(told.what, told.why, told.remedy), file=told.where)
    what = f"{told.where}: {told.what}" if told.where else told.what
    return Annotation(message=_message(what, told.why, told.remedy))


def _of_groups(report: BuildReport, manifest: Path) -> Iterable[Annotation]:
    from epctx.parsing import document

    root = document.read(manifest).root
    sections = [node for key in ("model_groups", "compose") if (node := root.get(key)) is not None]
    for group in report.groups:
        if group.failure is None:
            continue
        marks = (node.keys[group.group] for node in sections if group.group in node.keys)
        mark = next(marks, None)
        where = f"{group.group}@{group.target}"
        told = group.failure.where
        # The error may name the group itself.
        head = where if told is None else told if told.startswith(where) else f"{where}: {told}"
        message = _message(f"{head}: {group.failure.what}", group.failure.why, group.failure.remedy)
        yield Annotation(
            message=message,
            file=manifest.as_posix(),
            line=mark.line if mark else 0,
            column=mark.column if mark else 0,
        )


def _message(what: str, why: str | None, remedy: str) -> str:
    return f"{what}: {why}\n-> {remedy}" if why else f"{what}\n-> {remedy}"


def _write(told: Iterable[Annotation]) -> None:
    if wanted():
        sys.stderr.write("".join(f"{_command(each)}\n" for each in told))
        sys.stderr.flush()


def _command(told: Annotation) -> str:
    """The runner's own escapes: in a property also what ends it."""
    given: dict[str, object] = {}
    if told.file is not None:
        given["file"] = _in_repository(told.file)
        given |= {"line": told.line} if told.line else {}
        given |= {"col": told.column} if told.column else {}
    given["title"] = "epctx"
    properties = ",".join(
        f"{key}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in given.items()
    )
    return f"::error {properties}::{_escaped(told.message)}"


def _escaped(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_repository(file: str) -> str:
    """The path as GitHub knows it: from the root of the checkout, wherever the step runs."""
    path = Path(file).absolute()
    root = os.environ.get("GITHUB_WORKSPACE")
    if root and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return Path(file).as_posix()
