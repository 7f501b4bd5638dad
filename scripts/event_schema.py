"""Writes schemas/events.schema.json: `python -m scripts.event_schema`.

What `--format jsonl` prints, a line each; the dataclasses are the source, as of the report's.
"""

from __future__ import annotations

import json

import msgspec

from epctx.engine.events import Event
from epctx.errors import Failure, Violation
from scripts.report_schema import PATH as REPORT
from scripts.report_schema import described

PATH = REPORT.with_name("events.schema.json")


def document() -> dict[str, object]:
    """The schema of one line."""
    kinds = (Event, Failure, Violation)
    _, components = msgspec.json.schema_components(kinds, ref_template="#/$defs/{name}")
    definitions = {name: described(each) for name, each in sorted(components.items())}
    definitions["Error"] = _error(definitions.pop("Failure"))
    seconds = {"type": "number", "minimum": 0, "description": "since the command began."}
    result: dict[str, object] = {"description": "as `--format json` has it; the last line."}
    lines: list[dict[str, object]] = [
        _line(event={"$ref": "#/$defs/Event"}, seconds=seconds),
        _line(result=result),
        _line(error={"$ref": "#/$defs/Error"}),
    ]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:epctx:schema:events",
        "title": "epctx events",
        "description": "A line of what `--format jsonl` prints: what happens when it "
        "happens, then the result, or the error where there is none.",
        "anyOf": lines,
        "$defs": dict(sorted(definitions.items())),
    }


def _line(**properties: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _error(failure: dict[str, object]) -> dict[str, object]:
    """An error as JSON: what a report has of it, and all that is wrong with a manifest."""
    properties = failure["properties"]
    assert isinstance(properties, dict)
    properties["type"] = properties.pop("kind")
    violations = {"type": "array", "items": {"$ref": "#/$defs/Violation"}}
    required = ["code", "exit_code", "remedy", "type", "what"]
    return {
        **failure,
        "title": "Error",
        "properties": {**properties, "violations": violations},
        "required": required,
    }


def text() -> str:
    """The file's content."""
    return json.dumps(document(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8", newline="\n")
