"""Schemas for editors: one file that needs no other, and what each is called by."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from referencing import Registry

from epctx.parsing.schema import providers
from scripts import bundled_schema, event_schema

MANIFESTS = sorted((Path(__file__).parents[3] / "manifests").glob("*[!k].yaml"))
BESIDE = {"manifest"}
"""It refers to files beside it, by relative paths: an `$id` would lead editors elsewhere."""


def validator() -> jsonschema.Draft202012Validator:
    """Of the bundle alone: no other file can be read."""
    schema = json.loads(bundled_schema.PATH.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema, registry=Registry())


def good() -> dict[str, Any]:
    return {
        "schema_version": 1,
        "name": "m",
        "models": {"a": {"path": "a.onnx"}},
        "execution_providers": {
            "q": {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}}
        },
        "model_groups": {"g": {"models": ["a"], "execution_providers": ["q"]}},
    }


def test_the_bundle_is_what_the_schemas_say() -> None:
    remedy = "run `python -m scripts.bundled_schema`"
    assert bundled_schema.PATH.read_text(encoding="utf-8") == bundled_schema.text(), remedy


def test_the_schema_of_events_is_what_the_dataclasses_say() -> None:
    remedy = "run `python -m scripts.event_schema`"
    assert event_schema.PATH.read_text(encoding="utf-8") == event_schema.text(), remedy


@pytest.mark.parametrize("path", [p for p in MANIFESTS if ".lock" not in p.name], ids=str)
def test_manifests_keep_the_bundle(path: Path) -> None:
    validator().validate(yaml.safe_load(path.read_text(encoding="utf-8")))


def test_the_bundle_knows_the_options_of_each_provider() -> None:
    manifest = good()
    assert validator().is_valid(manifest)
    manifest["execution_providers"]["q"]["options"] = {"soc_modl": "60"}
    (error,) = validator().iter_errors(manifest)
    assert "soc_modl" in error.message


@pytest.mark.parametrize("name", providers.schema_names())
def test_each_schema_has_an_id_but_the_one_that_refers_to_its_neighbours(name: str) -> None:
    schema = json.loads(providers.read_schema(name))
    assert schema.get("$id") == (None if name in BESIDE else f"urn:epctx:schema:{_of(name)}")
    assert ('"$ref": "providers/' in providers.read_schema(name)) == (name in BESIDE)


def _of(name: str) -> str:
    return name.replace("/", ":")
