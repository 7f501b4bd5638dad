"""The JSON Schemas: print them for people and editors, and apply them to manifests.

`validate` finds every violation that JSON Schema can express; `rules` finds the others.
"""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping

import jsonschema
from jsonschema.protocols import Validator

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.parsing.document import Document
from epctx.parsing.document.tree import Node, Plain, Problem
from epctx.parsing.schema import providers
from epctx.parsing.schema.explain import explain
from epctx.text import did_you_mean


def names() -> list[str]:
    """Names of all schemas for `text`: epctx's own, then those of installed providers."""
    return [*providers.schema_names(), *(f"providers/{name}" for name in providers.third_party())]


def text(name: str) -> str:
    """Return a schema as text; the manifest's includes all provider options, for editors."""
    if name == "manifest":
        return json.dumps(with_options(providers.known()), indent=2, ensure_ascii=False) + "\n"
    schema = providers.find_schema(name) or providers.text(name.removeprefix("providers/"))
    if schema is None:
        raise UsageError(
            f'there is no schema "{name}"',
            remedy=did_you_mean(name, names()),
            code=Code.NO_SUCH_CHOICE,
        )
    return schema


def validate(document: Document) -> list[Problem]:
    """Find everything in the document that breaks the manifest's schema."""
    return list(problems_of(document.root, manifest()))


def problems_of(root: Node, schema: Mapping[str, Plain]) -> Iterator[Problem]:
    """Find violations of `schema` in the tree; report each wrong value once."""
    reported: set[object] = set()
    errors = validator(schema).iter_errors(root.plain())
    for error in sorted(errors, key=lambda error: error.validator != "type"):
        node = root
        for key in error.absolute_path:
            node = node.items[key] if isinstance(key, int) else node.mapping[key]
        for problem in explain(error, node, schema):
            subject = problem.node or (problem.path, problem.what)
            if subject not in reported:
                reported.add(subject)
                yield problem


@functools.cache
def manifest() -> dict[str, Plain]:
    """Schema of the manifest for validation, without conditionals on provider options.

    `parsing.rules.options` checks the options on the entries of each target.
    """
    schema: dict[str, Plain] = json.loads(providers.read_schema("manifest"))
    _definitions(schema)["execution_provider"].pop("allOf")
    return schema


def _definitions(schema: Mapping[str, Plain]) -> dict[str, dict[str, Plain]]:
    definitions = schema["$defs"]
    if not isinstance(definitions, dict):
        raise TypeError("$defs is not a mapping")
    return {name: one for name, one in definitions.items() if isinstance(one, dict)}


def validator(schema: Mapping[str, Plain]) -> Validator:
    """Return a validator that reads patterns in JSON Schema's dialect."""
    return _Validator(schema)


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    r"""Compile a JSON Schema pattern: `$` is only the end, and `\d` an ASCII digit."""
    return re.compile(re.sub(r"(?<!\\)\$(?=$|\)|\|)", r"\\Z", text), re.ASCII)


def _matches(
    validator: Validator, pattern: str, instance: object, schema: object
) -> Iterator[jsonschema.ValidationError]:
    if isinstance(instance, str) and not _pattern(pattern).search(instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


_extend: Callable[..., type[Validator]] = jsonschema.validators.extend  # has no type annotations
_Validator = _extend(jsonschema.Draft202012Validator, {"pattern": _matches})


def with_options(names: Iterable[str]) -> dict[str, Plain]:
    """Schema of the manifest, with each provider's option schema as a definition."""
    schema: dict[str, Plain] = json.loads(providers.read_schema("manifest"))
    definitions = schema["$defs"]
    conditionals: list[Plain] = []
    for name in names:
        option_schema = providers.find(name)
        if option_schema is None or not isinstance(definitions, dict):
            continue
        key = f"options_{name}"
        definitions[key] = _moved(copy.deepcopy(dict(option_schema.schema)), f"#/$defs/{key}/")
        conditionals.append(_conditional(name, f"#/$defs/{key}"))
    _definitions(schema)["execution_provider"]["allOf"] = conditionals
    return schema


def _conditional(provider: str, reference: str) -> Plain:
    """Condition that applies an option schema to a provider, unless it allows unknown options."""
    return {
        "if": {
            "properties": {
                "provider": {"const": provider},
                "allow_unknown_options": {"const": False},
            },
            "required": ["provider"],
        },
        "then": {"properties": {"options": {"$ref": reference}}},
    }


_OF_FILES = ("$schema", "$id")


def _moved(schema: Plain, place: str) -> Plain:
    """Copy of a schema with its internal references moved to `place`."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    moved = {key: _moved(value, place) for key, value in schema.items() if key not in _OF_FILES}
    reference = moved.get("$ref")
    if isinstance(reference, str):
        moved["$ref"] = place + reference.removeprefix("#/")
    return moved
