"""Pages of the reference that are made of JSON Schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

from scripts.site.markdown import contents, fence, table

Schema: TypeAlias = Mapping[str, Any]
SCHEMAS: Final = Path(__file__).parents[2] / "schemas"
_SAME: Final = {
    "defaults": "As in a model group",
    "targets.<name>.model_groups.<name>": "As in the model group of this name",
    "targets.<name>.execution_providers.<name>": "As in the EP of this alias",
}
"""Objects whose keys are those of another, and what is said of them."""
_BOUNDS: Final = {
    "minimum": "at least",
    "exclusiveMinimum": "more than",
    "maximum": "at most",
    "exclusiveMaximum": "less than",
}


def read(name: str) -> Schema:
    """A schema by its file's name, without `.json`."""
    found: Schema = json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def manifest() -> str:
    """Every key of a manifest."""
    schema = read("manifest.schema")
    lines = [
        "# The manifest: every key",
        schema["description"],
        "`epctx schema manifest` prints the schema that this page is made of; editors complete "
        "manifests with it. `<name>` stands for a name of your choice.",
        "## An example",
        fence("yaml", _yaml(schema["examples"][0])),
        *_object("", schema, schema),
    ]
    return "\n\n".join(lines) + "\n"


def options(provider: str) -> str:
    """Every option of an execution provider."""
    schema = read(f"providers/{provider}.options")
    owned = schema["x-epctx"].get("owned", {})
    lines = [
        f"# {provider}: every option",
        schema["description"],
        "An option stands in the manifest as `execution_providers.<name>.options.OPTION`; one that "
        "is not here is an error, since real EPs ignore what they do not know.",
    ]
    for name, option in schema["properties"].items():
        lines += _key(
            "##", name, name, resolved(option, schema), name in schema.get("required", ())
        )
    if owned:
        lines += [
            "## Options that epctx sets itself",
            "They are refused in a manifest.",
            table(("option", "why"), ((f"`{name}`", why) for name, why in owned.items())),
        ]
    return "\n\n".join(lines) + "\n"


def providers() -> list[str]:
    """The execution providers whose options have a schema."""
    return sorted(path.name.partition(".")[0] for path in SCHEMAS.glob("providers/*.options.json"))


def index_of_options() -> str:
    """The execution providers whose options are known, a line each."""
    found = {name: read(f"providers/{name}.options")["description"] for name in providers()}
    rows = ((f"[{name}]({name}.md)", what) for name, what in found.items())
    head = "# Every option of every execution provider"
    return f"{head}\n\n{table(('execution provider', ''), rows)}\n\n{contents(found)}\n"


def form(name: str) -> str:
    """What a file that epctx writes holds: a table for each kind of object in it."""
    schema = read(f"{name}.schema")
    kinds = {schema["title"]: schema} | schema["$defs"]
    lines = [f"# The form of {schema['title'].replace('epctx ', '')}s", schema["description"]]
    for title, kind in kinds.items():
        if "properties" in kind:
            lines += [f"## {title}", kind.get("description", "") if kind is not schema else ""]
            lines += [table(("key", "is", ""), _rows(kind))]
    return "\n\n".join(line for line in lines if line) + "\n"


def _rows(kind: Schema) -> Iterator[tuple[str, str, str]]:
    for name, value in kind["properties"].items():
        need = "" if name in kind.get("required", ()) else "; may be absent"
        yield f"`{name}`", kind_of(value) + need, value.get("description", "")


def resolved(value: Schema, root: Schema) -> Schema:
    """A schema with what it refers to, under its own words."""
    if "$ref" not in value or not value["$ref"].startswith("#/$defs/"):
        return value
    below = root["$defs"][value["$ref"].removeprefix("#/$defs/")]
    return {**resolved(below, root), **value}


def _object(path: str, value: Schema, root: Schema) -> Iterator[str]:
    """The keys of an object, each with those of the objects in it."""
    for name, each in value.get("properties", {}).items():
        found = resolved(each, root)
        here = f"{path}.{name}" if path else name
        mark = "###" if path else "##"
        yield from _key(mark, here, name, found, name in value.get("required", ()))
        yield from _inside(here, found, root)


def _inside(path: str, value: Schema, root: Schema) -> Iterator[str]:
    """What an object or a mapping of objects holds."""
    if path in _SAME:
        return
    if isinstance(value.get("additionalProperties"), dict):
        named = f"{path}.<name>"
        each = resolved(value["additionalProperties"], root)
        if named in _SAME:
            yield f"`{named}`: {_SAME[named]}. {each['description']}"
        else:
            yield from _inside(named, each, root)
    yield from _object(path, value, root)


def _key(mark: str, path: str, name: str, value: Schema, required: bool) -> Iterator[str]:
    yield f"{mark} `{path}`"
    yield value["description"]
    facts = [kind_of(value), *limits(value)]
    if required:
        facts.append("required")
    if "default" in value:
        facts.append(f"by default `{json.dumps(value['default'], ensure_ascii=False)}`")
    yield f"Is: {'; '.join(facts)}."
    yield fence("yaml", _yaml({name: example(value)}))


def kind_of(value: Schema) -> str:
    """What a value may be, in words."""
    if "$ref" in value and "type" not in value:
        name = value["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})" if name[0].isupper() else name.replace("_", " ")
    if "const" in value:
        return f"`{json.dumps(value['const'])}`"
    if "enum" in value:
        return "one of " + ", ".join(f"`{json.dumps(each)}`" for each in value["enum"])
    if "anyOf" in value:
        return " or ".join(kind_of(each) for each in value["anyOf"])
    said = value.get("type", ["object"])
    kinds = [said] if isinstance(said, str) else said
    return " or ".join(_one(kind, value) for kind in kinds)


def _one(kind: str, value: Schema) -> str:
    if kind == "array" and isinstance(value.get("items"), dict):
        return f"list of {kind_of(value['items'])}"
    if kind == "object" and isinstance(value.get("additionalProperties"), dict):
        return f"mapping to {kind_of(value['additionalProperties'])}"
    return {"object": "mapping", "array": "list", "string": "text"}.get(kind, kind)


def limits(value: Schema) -> Iterator[str]:
    """What a value must hold besides, in words."""
    expects = value.get("x-epctx", {}).get("expects")
    if expects:
        yield str(expects)
    yield from (f"{words} {value[key]}" for key, words in _BOUNDS.items() if key in value)
    if value.get("format") == "path":
        yield "a path from the manifest's folder"


def example(value: Schema) -> Any:
    """A value that is valid: what the schema gives, else one that is not the default."""
    if "examples" in value:
        return value["examples"][0]
    values = value["enum"]
    return next((each for each in values if each != value.get("default")), values[0])


def _yaml(value: object) -> str:
    short = str(yaml.safe_dump(value, sort_keys=False, allow_unicode=True, default_flow_style=None))
    return short if not short.startswith("{") else str(yaml.safe_dump(value, sort_keys=False))
