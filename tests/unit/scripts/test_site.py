"""The site's sources and checks, without building it: `make docs` does that."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from epctx.cli.app import COMMANDS
from epctx.commands import environment
from scripts.site import commands, gather, schemas

PROVIDERS = schemas.providers()


def keys(value: Any) -> Iterator[str]:
    """The names of all properties that a schema has, wherever they are."""
    if isinstance(value, dict):
        yield from value.get("properties", {})
        for each in value.values():
            yield from keys(each)


def test_every_key_of_a_manifest_is_on_its_page() -> None:
    text = schemas.manifest()
    schema = dict(schemas.read("manifest.schema"))
    schema["$defs"] = {k: v for k, v in schema["$defs"].items() if k != "execution_provider"}
    missing = [
        key for key in set(keys(schema)) if f"`{key}`" not in text and f".{key}`" not in text
    ]
    assert missing == []


@pytest.mark.parametrize("name", PROVIDERS)
def test_every_option_has_an_example_that_is_valid(name: str) -> None:
    schema = schemas.read(f"providers/{name}.options")
    for option, value in schema["properties"].items():
        own = schemas.resolved(value, schema)
        assert f"\n## `{option}`\n" in schemas.options(name)
        found = schemas.example(own)
        check = Draft202012Validator({"$defs": schema.get("$defs", {}), **value})
        # The type that the EP is given comes first; what is listed holds for that one.
        assert not [e.message for e in check.iter_errors(found)], (option, found)


@pytest.mark.parametrize("name", ["lock", "report", "events"])
def test_a_form_has_a_row_for_each_key(name: str) -> None:
    text = schemas.form(name)
    for kind in schemas.read(f"{name}.schema")["$defs"].values():
        assert not [key for key in kind.get("properties", {}) if f"| `{key}` |" not in text]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_has_its_options(name: str) -> None:
    text = commands.command(name)
    assert text.startswith(f"# epctx {name}\n") and "`--format`" in text


def test_the_program_is_on_its_pages() -> None:
    text = commands.variables()
    assert not [v.name for v in environment.variables({}) if f"| `{v.name}` |" not in text]
    assert [line.split(" | ")[0][2:] for line in commands.exit_codes().splitlines()[6:]] == [
        *map(str, range(11)),
        "130",
    ]


def test_the_sidebar_has_four_groups_and_no_page_twice() -> None:
    """Sphinx warns of pages that are in no list."""
    text = (gather.ROOT / "docs" / "index.md").read_text("utf-8")
    captions = re.findall(r"^:caption: (.*)$", text, re.MULTILINE)
    assert captions == ["Tutorial", "How-tos", "Reference", "Explanation"]
    groups = re.findall(r"^```{toctree}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    entries = [line for group in groups for line in group.splitlines() if line and line[0] != ":"]
    listed = [entry.rpartition("<")[2].rstrip(">") for entry in entries]
    assert len(listed) == len(set(listed))


def test_schemas_have_no_key_without_words() -> None:
    bundle = json.loads((schemas.SCHEMAS / "manifest.schema.json").read_text("utf-8"))
    found = {**bundle["properties"], **bundle["$defs"]["model_group"]["properties"]}
    assert not [k for k, v in found.items() if not schemas.resolved(v, bundle).get("description")]
