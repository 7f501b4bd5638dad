"""Problems as SARIF 2.1.0, which code scanning and editors show at their lines.

The rules are the error codes, each with its page as help. Paths inside the checkout are relative to
its root, `SRCROOT`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

from epctx._version import __version__
from epctx.cli.problems import Problem
from epctx.commands import explain
from epctx.error_codes import Code

_SCHEMA: Final = "https://json.schemastore.org/sarif-2.1.0.json"
_BASE: Final = "SRCROOT"


def document(problems: Sequence[Problem]) -> bytes:
    """Return a log of one run, with the rules of its results."""
    codes = sorted({each.code for each in problems})
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
        "results": [_result(each, codes) for each in problems],
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


def _result(problem: Problem, codes: list[Code]) -> Mapping[str, object]:
    what = ": ".join(filter(None, (problem.subject, problem.what)))
    return {
        "ruleId": problem.code,
        "ruleIndex": codes.index(problem.code),
        "level": problem.level,
        "message": {"text": f"{what}\n{problem.remedy}".strip()},
        "locations": [{"physicalLocation": _location(problem.file, problem)}]
        if problem.file is not None
        else [],
    }


def _location(file: str, problem: Problem) -> Mapping[str, object]:
    path, root = Path(os.path.normpath(Path(file).absolute())), _root()  # links are kept
    inside = path.is_relative_to(root)
    artifact = (
        {"uri": quote(os.fsencode(path.relative_to(root).as_posix())), "uriBaseId": _BASE}
        if inside
        else {"uri": path.as_uri()}
    )
    region = {"startLine": problem.line} if problem.line else {}
    region |= {"startColumn": problem.column} if problem.column else {}
    return {"artifactLocation": artifact, **({"region": region} if region else {})}


def _root() -> Path:
    """Return the checkout's root that a CI system names, else the current folder."""
    return Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd()).absolute()
