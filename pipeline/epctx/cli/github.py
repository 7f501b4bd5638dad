"""Annotate problems on GitHub, at their line in the manifest.

A workflow command is a line on stdout or stderr that the runner obeys. epctx writes annotations to
stderr, since stdout is for results (docs.github.com, "Workflow commands for GitHub Actions").
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from epctx.cli.problems import Problem
from epctx.cli.streams import Stream
from epctx.error_codes import Code
from epctx.text import visible


def wanted() -> bool:
    """Tell whether this is a step of a GitHub workflow."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def annotate(problems: Iterable[Problem]) -> None:
    """Annotate problems, if this is a step of a GitHub workflow."""
    if not wanted():
        return
    text = "".join(f"{_command(each)}\n" for each in problems)
    if isinstance(sys.stderr, Stream):
        sys.stderr.write_raw(text)
    else:
        sys.stderr.write(text)
    sys.stderr.flush()


def _command(problem: Problem) -> str:
    """Return the annotation of a problem, with the runner's own escapes."""
    fields: dict[str, object] = {}
    place = problem.place
    if problem.file is not None and os.path.isfile(problem.file):  # noqa: PTH113 - never raises
        fields["file"] = _in_repository(problem.file)
        fields |= {n: at for n, at in (("line", problem.line), ("col", problem.column)) if at}
    else:
        place = place or problem.position
    unnamed = problem.level == "warning" and problem.code is Code.MANIFEST
    fields["title"] = "epctx" if unnamed else f"epctx {problem.code}"
    head = ": ".join(filter(None, (problem.group, place, problem.subject, problem.what)))
    message = f"{head}\n-> {problem.remedy}"
    properties = ",".join(
        f"{key}={_escaped(str(value)).replace(':', '%3A').replace(',', '%2C')}"
        for key, value in fields.items()
    )
    return f"::{problem.level} {properties}::{_escaped(message)}"


def _escaped(text: str) -> str:
    return visible(text).replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _in_repository(file: str) -> str:
    """Return the path as GitHub expects it: relative to the checkout's root."""
    path = Path(file).absolute()
    root = os.environ.get("GITHUB_WORKSPACE")
    if root and path.is_relative_to(root):
        return path.relative_to(root).as_posix()
    return Path(file).as_posix()
