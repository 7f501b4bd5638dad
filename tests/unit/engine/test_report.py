from __future__ import annotations

import json

import jsonschema

from scripts import report_schema


def test_the_file_is_what_the_dataclasses_say() -> None:
    remedy = "run `python -m scripts.report_schema`"
    assert report_schema.PATH.read_text(encoding="utf-8") == report_schema.text(), remedy


def test_it_is_a_schema_that_refuses_what_is_no_report() -> None:
    schema = json.loads(report_schema.text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not validator.is_valid({})
    assert not validator.is_valid({"folders": [{"folder": 1}]})
    assert validator.is_valid({"folders": []})


def test_attributes_are_described_where_they_are() -> None:
    definitions = json.loads(report_schema.text())["$defs"]
    finding = definitions["Finding"]
    assert finding["properties"]["subject"]["description"].startswith("a file of the folder")
    assert "Attributes" not in finding["description"]
