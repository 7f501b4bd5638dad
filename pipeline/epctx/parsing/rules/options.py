"""Provider options: convert them to the EP's types, and check them against its schema.

Real EPs silently ignore a misspelt option and a bad value (real-eps.md section 9). Source: design
section 5; schemas/providers/README.md.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.manifest import DEFAULT_EP, PLUGIN_LIBRARY, OptionValue
from epctx.parsing.document.tree import (
    Mark,
    Node,
    Plain,
    Problem,
    Scalar,
    at,
    at_key,
    path_text,
    quoted,
    refusal,
)
from epctx.parsing.precedence import present
from epctx.parsing.rules.settings import Places
from epctx.parsing.schema import providers
from epctx.parsing.schema.apply import problems_of
from epctx.parsing.schema.providers import OptionSchema, schema_of
from epctx.text import nearest

_INTEGER = re.compile(r"[-+]?[0-9]{1,18}")
_NUMBER = re.compile(r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?")
_UNKNOWN: Mapping[str, Plain] = {"items": {"type": ["string", "integer"]}}
"""Schema for the list items of an option that no schema describes."""
_BOOLEANS = {"0": False, "1": True, "true": True, "false": False}


def converted(entry: Node) -> Node:
    """Options of the entry in the types that the EP expects, without removed options."""
    options = entry.get("options")
    schema = schema_of(entry)
    properties = schema.properties if schema is not None else {}
    if options is None:
        return Node(value={}, mark=entry.mark, path=(*entry.path, "options"))
    children = {
        name: _chosen(_convert(node, properties.get(name, _UNKNOWN)), name, schema)
        for name, node in present(options).items()
    }
    return replace(options, value=children)


def path_options(entry: Node) -> dict[str, Node]:
    """Options of the entry whose values are paths."""
    schema = schema_of(entry)
    properties = schema.properties if schema is not None else {}
    return {
        name: node
        for name, node in converted(entry).mapping.items()
        if node.string is not None
        and (
            properties.get(name, {}).get("format") == "path"
            or (schema is None and name == PLUGIN_LIBRARY)
        )
    }


def file_options(entry: Node, places: Places) -> dict[str, Node]:
    """Options that no schema describes and whose values name an existing file.

    Only a value that looks like a path counts: `fast` stays a word even if such a file exists.
    """
    schema = schema_of(entry)
    properties = schema.properties if schema is not None else {}
    return {
        name: node
        for name, node in converted(entry).mapping.items()
        if name not in properties
        and node.string is not None
        and not {"/", ".", "\\"}.isdisjoint(node.string)
        and places.absolute(node.string).is_file()
    }


def label(entry: Node) -> str:
    """The `[ep]` of the entry's context binaries; the provider's name without a schema."""
    schema, provider = schema_of(entry), entry.get("provider")
    if schema is None:
        return provider.string or "" if provider is not None else ""
    plain = converted(entry).plain()
    return schema.label(plain if isinstance(plain, dict) else {})


def label_options(entry: Node) -> tuple[str, ...]:
    """Names of the options that the label depends on."""
    schema = schema_of(entry)
    return schema.label_options if schema is not None else ()


def check(entry: Node, places: Places) -> Iterator[Problem]:
    """Find faults in an entry's provider name and options."""
    provider, allowed = entry.get("provider"), entry.get("allow_unknown_options")
    if provider is None or provider.string is None:
        return
    if provider.string == DEFAULT_EP:
        what = f"{DEFAULT_EP} is the default EP, which is always last"
        yield at(provider, what, "remove the entry; `execution_providers: []` leaves all to it")
        return
    schema = schema_of(entry)
    accepts_unknown = allowed is not None and allowed.value is True
    if schema is None and not accepts_unknown:
        yield _unknown_provider(provider, provider.string)
    options = converted(entry)
    owned = schema.knowledge.owned if schema is not None else {}
    refused = dict(_refused(options, owned))
    yield from refused.values()
    if schema is not None:
        kept = {name: node for name, node in options.mapping.items() if name not in refused}
        relaxed = {**schema.validation, "additionalProperties": True} if accepts_unknown else None
        for problem in problems_of(replace(options, value=kept), relaxed or schema.validation):
            yield _in_words(problem, schema)
    for node in path_options(entry).values():
        wrong = places.problem(node.text)
        if wrong is not None:
            yield at(node, *wrong, Code.PATH_REFUSED)


def of_session(provider: str, options: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Options for a session outside of a manifest, in the types that the EP expects.

    Paths are relative to the current folder. Options that epctx sets or forbids for a compile are
    allowed if the schema lists them for sessions that run a model. Options of an EP without a
    schema are passed on unchanged.

    Raises:
        ManifestError: an option is not in the schema, or a value is not allowed.
        ProviderUnavailable: an installed provider's schema cannot be used.
    """
    schema = providers.find(provider)
    if schema is None or not options:
        return dict(options)
    at_runtime = {name: options[name] for name in schema.knowledge.at_runtime if name in options}
    given = {name: value for name, value in options.items() if name not in at_runtime}
    tree = _node(given, (provider,))
    refused = dict(_refused(tree, schema.knowledge.owned))
    kept = {
        name: _chosen(_convert(node, schema.properties.get(name, {})), name, schema)
        for name, node in tree.mapping.items()
        if name not in refused
    }
    wrong = (_in_words(p, schema) for p in problems_of(replace(tree, value=kept), schema.session))
    for problem in (*refused.values(), *wrong):
        raise ManifestError(
            problem.what, where=path_text(problem.path), remedy=problem.remedy, code=problem.code
        )
    paths = {name for name in kept if schema.properties[name].get("format") == "path"}
    return at_runtime | {
        name: str(Path(node.text).absolute()) if name in paths else _plain(node)
        for name, node in kept.items()
    }


def _node(value: object, path: tuple[str | int, ...]) -> Node:
    """Tree of a value that is not in a file."""
    if isinstance(value, Mapping):
        children = {str(key): _node(child, (*path, str(key))) for key, child in value.items()}
        return Node(value=children, mark=Mark(), path=path)
    if isinstance(value, list | tuple):
        items = tuple(_node(item, (*path, index)) for index, item in enumerate(value))
        return Node(value=items, mark=Mark(), path=path)
    assert value is None or isinstance(value, str | int | float)
    return Node(value=value, mark=Mark(), path=path, text=str(value))


def _plain(node: Node) -> OptionValue:
    if isinstance(node.value, tuple):
        return tuple(item.text for item in node.items)
    assert isinstance(node.value, str | int | float)
    return node.value


def _unknown_provider(node: Node, name: str) -> Problem:
    if name in providers.WITHOUT_EPCONTEXT:
        remedy = f"name an EP that does: {', '.join(providers.known())}"
        what = f"{name} writes no EPContext models: it compiles in the session"
        return at(node, what, remedy)
    near = _nearest_provider(name)
    if near is not None:
        what = f"there is no provider {quoted(name)}"
        return at(node, what, f'did you mean "{near}"?', Code.UNKNOWN_PROVIDER)
    remedy = (
        "install the package that brings it; schemas/providers/README.md says how to declare an EP "
        "that has none"
    )
    what = f"provider {quoted(name)} has no option schema here"
    return at(node, what, remedy, Code.UNKNOWN_PROVIDER)


def _nearest_provider(name: str) -> str | None:
    """Nearest known provider; compares names without "ExecutionProvider", which all names share."""
    providers_by_name = {_short(provider): provider for provider in providers.known()}
    near = nearest(_short(name), providers_by_name)
    if near is not None:
        return providers_by_name[near]

    whole = difflib.get_close_matches(name, providers_by_name.values(), n=1, cutoff=0.9)
    return whole[0] if whole else None


def _short(provider: str) -> str:
    return provider.casefold().partition("execution")[0]


def _refused(options: Node, owned: Mapping[str, str]) -> Iterator[tuple[str, Problem]]:
    for name in options.mapping:
        reason = owned.get(name)
        if name.startswith("ep."):
            reason = "it is a session entry, not an option of an execution provider"
        if reason is not None:
            yield name, at_key(options, name, *refusal(reason), Code.OWNED_SETTING)


def _in_words(problem: Problem, schema: OptionSchema) -> Problem:
    if problem.code in (Code.WRONG_TYPE, Code.WRONG_VALUE):
        named = [step for step in problem.path if isinstance(step, str)]
        return replace(problem, code=schema.code(named[-1]))
    if problem.what != "unknown key":
        return problem
    near = nearest(str(problem.path[-1]), schema.properties)
    remedy = f"`epctx schema providers/{schema.knowledge.provider}` lists the options"
    return replace(
        problem,
        what="unknown option",
        remedy=problem.remedy if near else remedy,
        code=Code.UNKNOWN_OPTION,
    )


def _convert(node: Node, option: Mapping[str, Plain]) -> Node:
    """Convert a value, or a list's items, to the option's first type from one of its others."""
    kinds = option.get("type")
    if isinstance(node.value, tuple):
        items = option.get("items")
        of_item = items if isinstance(items, dict) else {}
        return replace(node, value=tuple(_convert(item, of_item) for item in node.items))
    if isinstance(kinds, list) and _kind(node) in kinds[1:]:
        return replace(node, value=_as(str(kinds[0]), node))
    return node


def _chosen(node: Node, option: str, schema: OptionSchema | None) -> Node:
    """Replace a value, or a list's items, by the EP's value if it is another name in `choices`."""
    choices = {} if schema is None else schema.choices(option)
    if not choices:
        return node
    if isinstance(node.value, tuple):
        return replace(node, value=tuple(_chosen(item, option, schema) for item in node.items))
    text = (node.string or "").casefold()
    values = {v for name, v in choices.items() if f" {name.casefold()}".endswith(f" {text}")}
    if len(values) != 1 or not any(map(str.isalpha, text)):  # "888" is a number, not a name
        return node
    (value,) = values
    return replace(node, value=value, text=value)


def _kind(node: Node) -> str:
    """Type of the value, in the words of JSON Schema."""
    if isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return "integer" if node.value == int(node.value) else "number"
    return {"text": "string", "boolean": "boolean"}.get(node.kind, "")


def _as(kind: str, node: Node) -> Scalar:
    """Convert a scalar to another type; return it unchanged if that is impossible."""
    text, value = node.text, node.value
    if kind == "string":
        return text
    if kind == "boolean" and text.casefold() in _BOOLEANS:
        return _BOOLEANS[text.casefold()]
    if kind == "integer" and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number" and _NUMBER.fullmatch(text):
        return float(text)
    return value if isinstance(value, str | int | float) else None
