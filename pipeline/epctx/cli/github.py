"""Errors as GitHub shows them: at their line in the manifest, in the checks of a change.

A workflow command is a line that the runner finds on stdout or stderr. Ours go to stderr, since
stdout is for results (docs.github.com, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from epctx.cli.streams import Stream
from epctx.cli.visible import visible
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import EpctxError, Failure, InvalidManifest, Violation
from epctx.parsing import document


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


def warnings(told: Iterable[Violation]) -> None:
    """Annotate what is doubtful in manifests."""
    _write(_of_violation(each, "warning") for each in told)


def failures(report: BuildReport, manifest: Path) -> None:
    """Annotate the groups of a build that failed, where the manifest has them."""
    if wanted():
        _write(_of_groups(report, manifest))


def _of_violation(told: Violation, kind: str = "error") -> str:
    subject = f"{told.path}: " if told.path else ""
    message = f"{subject}{told.what}\n-> {told.remedy}"
    return _command(message, told.code, told.file, told.line, told.column, kind=kind)


def _of_error(told: EpctxError) -> str:
    if told.file is None or not os.path.isfile(told.file):  # noqa: PTH113 - never raises
        return _command(_message(told.failure), told.code)
    place = f"{told.file}:{told.line}:{told.column}" if told.line else told.file
    where = None if told.where == place else told.where  # the annotation is there
    message = _message(dataclasses.replace(told.failure, where=where))
    return _command(message, told.code, told.file, told.line, told.column)


def _of_groups(report: BuildReport, manifest: Path) -> Iterable[str]:
    root = document.read(manifest).root
    sections = [node for key in ("model_groups", "compose") if (node := root.get(key)) is not None]
    for group in report.groups:
        if group.failure is None:
            continue
        marks = (node.keys[group.group] for node in sections if group.group in node.keys)
        mark = next(marks, None)
        message = _message(
            dataclasses.replace(group.failure, group=f"{group.group}@{group.target}")
        )
        place = (mark.line, mark.column) if mark else ()
        yield _command(message, group.failure.code, manifest.as_posix(), *place)


def _message(told: Failure) -> str:
    head = ": ".join(part for part in (told.group, told.where, told.what, told.why) if part)
    return f"{head}\n-> {told.remedy}"


def _write(commands: Iterable[str]) -> None:
    if wanted():
        text = "".join(f"{each}\n" for each in commands)
        if isinstance(sys.stderr, Stream):
            sys.stderr.write_raw(text)
        else:
            sys.stderr.write(text)
        sys.stderr.flush()


def _command(
    message: str,
    code: Code,
    file: str | None = None,
    line: int = 0,
    column: int = 0,
    *,
    kind: str = "error",
) -> str:
    """An annotation, with the runner's own escapes: in a property also what ends it.

    Args:
        message: what is shown.
        code: of the kind of error, in the title.
        file: as the user named it; None: it is about no file.
        line: from 1; 0: the file as a whole.
        column: from 1; 0: the line as a whole.
        kind: `error` or `warning`.
    """
    given: dict[str, object] = {} if file is None else {"file": _in_repository(file)}
    if file is not None:
        given |= {name: at for name, at in (("line", line), ("col", column)) if at}
    given["title"] = "epctx" if kind == "warning" and code is Code.MANIFEST else f"epctx {code}"
    properties = ",".join(
        f"{key}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in given.items()
    )
    return f"::{kind} {properties}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_repository(file: str) -> str:
    """The path as GitHub knows it: from the root of the checkout, wherever the step runs."""
    path = Path(file).absolute()
    root = os.environ.get("GITHUB_WORKSPACE")
    if root and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return Path(file).as_posix()
