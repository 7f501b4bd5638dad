"""What is wrong as SARIF 2.1.0, which code scanning and editors show at its line.

The rules are the codes of errors, each with its page as help. Paths are relative to the root of the
checkout, `SRCROOT`, where they lie in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

from msgspec import Struct

from epctx._version import __version__
from epctx.commands import explain
from epctx.error_codes import Code
from epctx.errors import Violation
from epctx.verification.findings import CODES, VerifyReport

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE: Final = "SRCROOT"
Level = Literal["error", "warning", "note"]


class Result(Struct, frozen=True, kw_only=True):
    """One thing that is wrong.

    Attributes:
        file: as the user named it; None: it is about no file.
        line: from 1; 0: the file as a whole.
        column: from 1; 0: the line as a whole.
        level: `warning`: it may be meant; `note`: it could not be checked.
    """

    code: Code
    message: str
    file: str | None = None
    line: int = 0
    column: int = 0
    level: Level = "error"


def of_violations(violations: Iterable[Violation], *, level: Level = "error") -> Iterator[Result]:
    """What is wrong in manifests, or looks as if."""
    for told in violations:
        subject = f"{told.path}: " if told.path else ""
        yield Result(
            code=told.code,
            message=f"{subject}{told.what}\n{told.remedy}",
            file=told.file,
            line=told.line,
            column=told.column,
            level=level,
        )


def of_verification(report: VerifyReport) -> Iterator[Result]:
    """What verification found, but for what passed."""
    for folder in report.folders:
        for finding in folder.findings:
            if finding.outcome != "pass":
                strict = report.strict and finding.outcome == "not checkable"
                failed = finding.outcome == "fail" or strict
                what = f"{finding.policy}/{finding.check}: {finding.message}"
                yield Result(
                    code=CODES[finding.policy],
                    message=f"{what}\n{finding.remedy}",
                    file=(Path(folder.folder) / finding.subject).as_posix(),
                    level="error" if failed else "note",
                )


def document(results: Iterable[Result]) -> bytes:
    """A log of one run, with the rules that its results are of."""
    found = list(results)
    codes = sorted({each.code for each in found})
    run = {
        "tool": {
            "driver": {
                "name": "epctx",
                "version": __version__,
                "rules": [_rule(code) for code in codes],
            }
        },
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {_BASE: {"description": {"text": "the root of the checkout"}}},
        "results": [_result(each, codes) for each in found],
    }
    log = {"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}
    return f"{json.dumps(log, indent=2)}\n".encode()


def _rule(code: Code) -> Mapping[str, object]:
    page = explain.explain(code)
    return {
        "id": code,
        "name": code.name.title().replace("_", ""),
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.cause},
        "help": {"text": page.remedy, "markdown": explain.text(code)},
    }


def _result(told: Result, codes: list[Code]) -> Mapping[str, object]:
    return {
        "ruleId": told.code,
        "ruleIndex": codes.index(told.code),
        "level": told.level,
        "message": {"text": told.message.strip()},
        "locations": [] if told.file is None else [{"physicalLocation": _location(told)}],
    }


def _location(told: Result) -> Mapping[str, object]:
    assert told.file is not None
    path, root = Path(os.path.normpath(Path(told.file).absolute())), _root()  # links are kept
    inside = path.is_relative_to(root)
    artifact = (
        {"uri": quote(os.fsencode(path.relative_to(root).as_posix())), "uriBaseId": _BASE}
        if inside
        else {"uri": path.as_uri()}
    )
    region = {"startLine": told.line} if told.line else {}
    region |= {"startColumn": told.column} if told.column else {}
    return {"artifactLocation": artifact, **({"region": region} if region else {})}


def _root() -> Path:
    """The checkout's root where a CI system says it, else the current folder."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).absolute()
