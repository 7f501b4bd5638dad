"""Writes schemas/report.schema.json: `python -m scripts.report_schema`.

The report's dataclasses are the source, their docstrings the descriptions; a test holds the file
to them.
"""

from __future__ import annotations

import inspect
import json
import re
from pathlib import Path

import msgspec

from epctx.commands.package.writing import PackageReport
from epctx.commands.pull import PullReport
from epctx.commands.push import PushReport
from epctx.engine.report import BuildReport
from epctx.verification.findings import VerifyReport

PATH = Path(__file__).parent.parent / "schemas" / "report.schema.json"
REPORTS = (BuildReport, VerifyReport, PackageReport, PushReport, PullReport)
_ATTRIBUTE = re.compile(r"(\w+): (.*)")


def document() -> dict[str, object]:
    """The schema of a build report, and of what other commands print as JSON."""
    _, components = msgspec.json.schema_components(REPORTS, ref_template="#/$defs/{name}")
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:epctx:schema:report",
        "title": "epctx report",
        "description": "What a build did (`dist/<name>.build.json`), what `epctx verify` found, "
        "what `epctx package` made, or what `epctx push` and `epctx pull` moved. Times are in "
        "seconds, sizes in bytes.",
        "anyOf": [{"$ref": f"#/$defs/{report.__name__}"} for report in REPORTS],
        "$defs": {name: described(each) for name, each in sorted(components.items())},
    }


def described(component: dict[str, object]) -> dict[str, object]:
    """The docstring's summary as the description, its attributes as those of the properties."""
    summary, _, listed = inspect.cleandoc(str(component.get("description", ""))).partition(
        "\n\nAttributes:\n"
    )
    properties = {key: dict(value) for key, value in component.get("properties", {}).items()}  # type: ignore[attr-defined]
    for name, words in _attributes(listed):
        if name in properties:
            properties[name]["description"] = words
    return {**component, "description": " ".join(summary.split()), "properties": properties}


def _attributes(listed: str) -> list[tuple[str, str]]:
    """(name, words) of an `Attributes:` section; a deeper line goes on with the one before."""
    found: list[tuple[str, str]] = []
    for line in inspect.cleandoc(listed).splitlines():
        match = _ATTRIBUTE.fullmatch(line)
        if match is not None and not line.startswith(" "):
            found.append((match[1], match[2]))
        elif found and line.strip():
            found[-1] = (found[-1][0], f"{found[-1][1]} {line.strip()}")
    return found


def text() -> str:
    """The file's content."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8", newline="\n")
