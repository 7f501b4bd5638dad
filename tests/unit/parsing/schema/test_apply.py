"""The schemas themselves: sound, complete for editors, and in step with the types."""

from __future__ import annotations

import importlib.resources
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import msgspec
import pytest

from epctx import manifest
from epctx.errors import UsageError
from epctx.parsing.schema import apply as schema
from epctx.parsing.schema import providers

NAMES = providers.schema_names()
MANIFEST = json.loads(providers.read_schema("manifest"))


def subschemas(at: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema that describes a value, by its path."""
    for key in ("properties", "$defs"):
        for name, child in at.get(key, {}).items():
            yield f"{path}/{name}", child
            yield from subschemas(child, f"{path}/{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(at.get(key), dict):
            yield f"{path}/*", at[key]
            yield from subschemas(at[key], f"{path}/*")


def resolved(child: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in child:
        name = child["$ref"].removeprefix("#/$defs/")
        child = {**MANIFEST["$defs"][name], **{k: v for k, v in child.items() if k != "$ref"}}
    return child


DESCRIBED = list(subschemas(MANIFEST))


@pytest.mark.parametrize("name", NAMES)
def test_every_schema_is_a_schema(name: str) -> None:
    found = json.loads(providers.read_schema(name))
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(found)


@pytest.mark.parametrize("name", providers.bundled())
def test_every_option_schema_keeps_the_rules_of_option_schemas(name: str) -> None:
    rules = json.loads(providers.read_schema("provider-options"))
    option_schema = json.loads(providers.read_schema(f"providers/{name}"))
    jsonschema.validate(option_schema, rules, cls=jsonschema.Draft202012Validator)
    found = providers.find(name)
    assert found is not None
    assert found.knowledge.provider == name
    assert not set(found.knowledge.owned) & set(found.properties), "owned and allowed at once"
    assert set(found.label_options) <= set(found.properties)


@pytest.mark.parametrize("name", providers.bundled())
def test_defaults_and_examples_of_options_are_what_they_say(name: str) -> None:
    found = providers.find(name)
    assert found is not None
    for option, rules in found.properties.items():
        examples = rules.get("examples", [])
        assert isinstance(examples, list)
        for value in [*examples, *([rules["default"]] if "default" in rules else [])]:
            written = {**found.schema, "required": []}
            jsonschema.validate({option: value}, written, cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(("path", "child"), DESCRIBED, ids=[path for path, _ in DESCRIBED])
def test_editors_find_a_title_a_description_and_examples(path: str, child: dict[str, Any]) -> None:
    found = resolved(child)
    assert found.get("title") and found.get("description"), path
    assert found.get("examples"), path


@pytest.mark.parametrize(("path", "child"), DESCRIBED, ids=[path for path, _ in DESCRIBED])
def test_examples_and_defaults_are_valid(path: str, child: dict[str, Any]) -> None:
    # What the conditionals say of options is tested with the options.
    own = {key: rule for key, rule in child.items() if key != "allOf"}
    whole = {"$defs": schema.manifest()["$defs"], **own}
    for value in [*child.get("examples", []), *([child["default"]] if "default" in child else [])]:
        assert list(schema.validator(whole).iter_errors(value)) == [], path


def test_the_examples_of_the_whole_are_manifests() -> None:
    for example in MANIFEST["examples"]:
        assert list(schema.validator(schema.manifest()).iter_errors(example)) == []


SETTINGS: dict[str, type[msgspec.Struct]] = {
    "model_group": manifest.ModelGroup,
    "optimize": manifest.OptimizeSettings,
    "partition": manifest.PartitionSettings,
    "verify": manifest.VerifySettings,
    "verify_inputs": manifest.VerifyInputs,
    "tolerance": manifest.Tolerance,
    "external_initializers": manifest.ExternalInitializers,
    "execution_provider": manifest.ProviderSpec,
    "model": manifest.ModelSource,
    "package": manifest.PackageSettings,
    "genai": manifest.GenaiSettings,
}
"""Definitions of the schema, and the types that they become."""


@pytest.mark.parametrize("name", SETTINGS)
def test_defaults_of_the_schema_are_those_of_the_types(name: str) -> None:
    fields = {field.name: field for field in msgspec.structs.fields(SETTINGS[name])}
    compared = 0
    for key, child in MANIFEST["$defs"][name]["properties"].items():
        found, field = resolved(child), fields.get(key)
        # A section's own keys have the defaults; EPs must be said somewhere.
        if field is None or field.default is msgspec.NODEFAULT or key == "execution_providers":
            continue
        default = list(field.default) if isinstance(field.default, tuple) else field.default
        assert found.get("default") == default, key
        compared += 1
    assert compared


def test_keys_of_the_schema_are_those_of_the_types() -> None:
    for name, kind in SETTINGS.items():
        fields = set(kind.__struct_fields__)
        extra = {"partition": {"exclude", "pieces"}, "model": {"bucket_name"}}.get(name, set())
        assert set(MANIFEST["$defs"][name]["properties"]) - extra <= fields, name


def test_defaults_and_changes_have_the_keys_of_a_group() -> None:
    group = MANIFEST["$defs"]["model_group"]["properties"]
    own = {"models", "sharing_groups"}
    shared = {key: child for key, child in group.items() if key not in own}
    assert MANIFEST["properties"]["defaults"]["properties"] == shared
    change = MANIFEST["$defs"]["model_group_change"]["properties"]
    assert {key: child for key, child in change.items() if key not in own} == shared
    assert set(change) == set(group)


def test_a_target_holds_what_the_design_says_and_nothing_else() -> None:
    target = MANIFEST["$defs"]["target"]
    assert set(target["properties"]) == {
        "execution_providers", "model_groups", "include", "exclude",
    }  # fmt: skip
    assert target["additionalProperties"] is False


def test_no_mapping_takes_unknown_keys_by_oversight() -> None:
    for path, child in [("", MANIFEST), *DESCRIBED]:
        kinds = child.get("type")
        if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
            assert "additionalProperties" in child or "$ref" in child, path


def test_each_bundled_provider_has_its_conditional_for_editors() -> None:
    conditionals = MANIFEST["$defs"]["execution_provider"]["allOf"]
    assert {
        one["if"]["properties"]["provider"]["const"]: one["then"]["properties"]["options"]["$ref"]
        for one in conditionals
    } == {name: f"providers/{name}.options.json" for name in providers.bundled()}


def test_the_printed_manifest_schema_has_every_option_folded_in() -> None:
    printed = json.loads(schema.text("manifest"))
    jsonschema.Draft202012Validator.check_schema(printed)
    entry = {**printed, "$ref": "#/$defs/execution_provider"}
    for key in ("properties", "required", "type", "additionalProperties"):
        del entry[key]
    validator = jsonschema.Draft202012Validator(entry)
    fine = {"provider": "ReferenceExecutionProvider", "options": {"source": "npu"}}
    assert validator.is_valid(fine)
    assert not validator.is_valid({**fine, "options": {"sorce": "npu"}})
    assert validator.is_valid({**fine, "options": {"sorce": 1}, "allow_unknown_options": True})


@pytest.mark.parametrize("name", ["manifst", "providers/reference", "", "../pyproject", "a/b/c"])
def test_an_unknown_schema_is_a_usage_error(name: str) -> None:
    with pytest.raises(UsageError) as caught:
        schema.text(name)
    assert caught.value.remedy.startswith(("did you mean", "choose one of"))


def test_a_missing_schema_of_epctx_itself_is_told() -> None:
    with pytest.raises(FileNotFoundError, match="installed without its schema"):
        providers.read_schema("no-such")


def test_schemas_come_from_the_package_where_it_has_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "_schemas" / "providers").mkdir(parents=True)
    (tmp_path / "_schemas" / "manifest.schema.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(importlib.resources, "files", lambda package: tmp_path)
    providers.schema_root.cache_clear()
    try:
        assert providers.schema_names() == ["manifest"]
        assert providers.find_schema("manifest") == "{}"
    finally:
        providers.schema_root.cache_clear()
