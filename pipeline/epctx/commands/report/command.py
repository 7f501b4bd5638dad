"""The build report as one HTML page that needs no network: `epctx report`."""

from __future__ import annotations

from pathlib import Path

import msgspec

from epctx import codec, limits
from epctx.commands.report import soundness
from epctx.commands.report.device import OnDevice
from epctx.engine.report import SCHEMA_VERSION, BuildReport
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files import atomic
from epctx.files.entries import open_entry

SUFFIX = ".build.json"
_DEPTH = 2
"""Folders between that of a group's outputs and what the report is named as."""
_LISTED = 5
"""Reports that a message names."""
_AGAIN = "build again with this epctx: what has not changed is not built again"


def read(path: Path) -> BuildReport:
    """Read a build report.

    Raises:
        UsageError: there is none, or it is none of this version of epctx.
    """
    try:
        report = codec.decode(_content(path), BuildReport)
    except msgspec.DecodeError as error:
        raise _no_report(path, str(error)) from error
    if report.schema_version != SCHEMA_VERSION:
        raise UsageError(
            f"has version {report.schema_version}, this epctx reads {SCHEMA_VERSION}",
            file=path.as_posix(),
            remedy=_AGAIN,
        )
    why = soundness.objection(report)
    if why is not None:
        raise _no_report(path, why)
    return report


def _content(path: Path) -> bytes:
    most = limits.REPORT_BYTES
    remedy = "name a manifest, or the report of a build: dist/<name>.build.json"
    with (
        UsageError.if_refused(
            "cannot be read", file=path.as_posix(), remedy=remedy, code=Code.NO_SUCH_PATH
        ),
        open_entry(path.resolve()) as stream,
    ):
        content = stream.read(most.value + 1)
    if len(content) > most.value:
        what = f"is larger than {most}"
        raise UsageError(what, file=path.as_posix(), remedy=f"{remedy}; {most.remedy}")
    return content


def _no_report(path: Path, why: str) -> UsageError:
    return UsageError(
        "is no build report of this version of epctx",
        file=path.as_posix(),
        why=why,
        remedy=f"name a report that `epctx build` wrote, or {_AGAIN}",
    )


def of_manifest(name: str, out: Path, manifest: Path) -> Path:
    """The report of what a manifest of this name last built into `out`.

    Raises:
        UsageError: it was not built there.
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
    """The report that belongs to a folder of outputs: `dist`, if one build is in it, `dist/<name>`,
    or a folder in that.

    Raises:
        UsageError: there is none, or there are several.
    """
    named = folder.resolve() if ".." in folder.parts else folder.absolute()
    for place in (named, *named.parents[:_DEPTH]):
        own = Path(f"{place}{SUFFIX}")
        if own.is_file():
            here = Path.cwd()
            relative = not folder.is_absolute() and own.is_relative_to(here)
            return own.relative_to(here) if relative else own
    found = sorted(folder.glob(f"*{SUFFIX}"))
    if len(found) == 1:
        return found[0]
    shown = folder.as_posix()
    if found:
        names = ", ".join(each.as_posix() for each in found[:_LISTED])
        what, remedy = f"has the reports of {len(found)} builds", f"name one of them: {names}"
    else:
        what, remedy = "has no report of a build", "name a manifest that was built, or its report"
    raise UsageError(what, file=shown, remedy=remedy)


def page_of(path: Path) -> Path:
    """Return the default path of a report's page: beside the report."""
    return path.with_name(f"{path.name.removesuffix('.json').removesuffix('.build')}.report.html")


def write(path: Path, page: Path, device: OnDevice | None = None) -> BuildReport:
    """Write the page of the report at `path`; as `api.report`."""
    UsageError.if_missing("jinja2", "report")
    from epctx.commands.report.page import render

    report = read(path)
    atomic.replace(page, render(report, path.parent, page.parent, device).encode())
    return report
