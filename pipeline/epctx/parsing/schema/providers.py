"""JSON Schemas on disk, and the option schemas of providers."""

from __future__ import annotations

import functools
import importlib.resources
import importlib.util
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import entry_points
from importlib.resources.abc import Traversable
from pathlib import Path

import jsonschema
import msgspec
from msgspec import Struct, field

from epctx.error_codes import Code
from epctx.errors import ProviderUnavailable
from epctx.manifest import ENTRY_POINTS, CompileMemory
from epctx.parsing.document.tree import Node, Plain
from epctx.text import first_line

_SUFFIXES = {"": ".schema.json", "providers": ".options.json"}


@functools.cache
def schema_root() -> Traversable:
    """Folder of the schemas (design section 4)."""
    packaged = importlib.resources.files("epctx") / "_schemas"
    return packaged if packaged.is_dir() else Path(__file__).parents[4] / "schemas"


def schema_names() -> list[str]:
    """Names of all schemas, sorted: `manifest`, `providers/QNNExecutionProvider`, ..."""
    names = []
    for folder, suffix in _SUFFIXES.items():
        place = schema_root() / folder if folder else schema_root()
        prefix = f"{folder}/" if folder else ""
        names += [
            prefix + entry.name.removesuffix(suffix)
            for entry in place.iterdir()
            if entry.name.endswith(suffix)
        ]
    return sorted(names)


def find_schema(name: str) -> str | None:
    """Text of the schema with this name; None if there is none."""
    if name not in schema_names():  # a manifest may contain any name, of any length
        return None
    folder, _, stem = name.rpartition("/")
    return (schema_root() / folder / f"{stem}{_SUFFIXES[folder]}").read_text(encoding="utf-8")


def read_schema(name: str) -> str:
    """Text of a schema that epctx requires.

    Raises:
        FileNotFoundError: the installation of epctx is broken.
    """
    text = find_schema(name)
    if text is None:
        raise FileNotFoundError(f"epctx is installed without its schema {name}")
    return text


SUFFIX = ".options.json"
_EP = "ExecutionProvider"
WITHOUT_EPCONTEXT = frozenset(
    f"{name}{_EP}"
    for name in (
        *("ACL", "ArmNN", "Azure", "CANN", "CUDA", "CoreML", "Dml", "Dnnl", "JS", "Nnapi"),
        *("Rknpu", "ROCM", "SNPE", "Tvm", "WebGpu", "WebNN", "XNNPACK"),
    )
)
"""EPs of ONNX Runtime that write no EPContext model, because they compile in the session.

They ignore `ep.context_enable` (onnxruntime 1.31, onnxruntime/core/providers).
"""

_PLACEHOLDER = re.compile(r"\{([A-Za-z0-9_]+)\}")


class ForDecoders(Struct, frozen=True, kw_only=True):
    """Settings of a starter manifest for a decoder with a cache.

    Attributes:
        files: options that are JSON files, with the content of each.
        optimize: `optimize.level`, as passes and levels; empty for the default.
    """

    files: Mapping[str, object] = field(default_factory=dict)
    optimize: tuple[str, ...] = ()


class Advised(Struct, frozen=True, kw_only=True):
    """Option that is not required, but advised.

    Attributes:
        options: the option, and options that can replace it.
        without: consequence of omitting all of them, as one clause.
        remedy: setting to write.
    """

    options: tuple[str, ...]
    without: str
    remedy: str


class CompilesOn(Struct, frozen=True, kw_only=True):
    """Requirements on a host that compiles for an EP; empty if none are known.

    Attributes:
        systems: linux, windows, macos.
        machines: x86_64, aarch64.
        cpu: vendor of the CPU.
        extra: extra of epctx that installs the EP.
    """

    systems: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    cpu: str = ""
    extra: str = ""


class Context(Struct, frozen=True, kw_only=True):
    """Properties of a context, measured on the version that `compile_memory` names.

    Attributes:
        most: size of the largest context that a device loads, in bytes.
        size: bytes per weight, by kind of weight: float, integer or 4-bit.
        seconds: time on one core per billion weights of one model, by kind of weight.
    """

    most: int
    size: Mapping[str, float]
    seconds: Mapping[str, float]


class Knowledge(Struct, frozen=True, kw_only=True):
    """Content of `x-epctx` in an option schema.

    Attributes:
        provider: ONNX Runtime's name of the EP.
        label: the `[ep]` of `[model]_[ep].bin`; `{option}` is replaced by the option's value.
        can_share: True if the EP can put several models into one context.
        unshared_lists: options that may be lists, with the reason why a list prevents sharing.
        owned: options that epctx sets or forbids itself, with the reason.
        at_runtime: options in `owned` that are allowed for a session that runs a model.
        decoders: settings that `epctx init FOLDER` writes for the EP.
        advised: options that `epctx validate` recommends if they are missing.
        compiles_on: requirements on a host that compiles.
        compile_memory: memory of a compile; None if it was not measured.
        context: properties of a compiled context; None if they were not measured.
    """

    provider: str
    label: str
    can_share: bool
    unshared_lists: Mapping[str, str] = field(default_factory=dict)
    owned: Mapping[str, str] = field(default_factory=dict)
    at_runtime: tuple[str, ...] = ()
    decoders: ForDecoders = field(default_factory=ForDecoders)
    advised: tuple[Advised, ...] = ()
    compiles_on: CompilesOn = field(default_factory=CompilesOn)
    compile_memory: CompileMemory | None = None
    context: Context | None = None


class OptionSchema(Struct, frozen=True, kw_only=True, dict=True):
    """Option schema of a provider: JSON Schema in `schema`, other facts in `knowledge`."""

    schema: Mapping[str, Plain]
    knowledge: Knowledge

    @functools.cached_property
    def properties(self) -> Mapping[str, Mapping[str, Plain]]:
        """Options by name, each merged with the target of its `$ref`."""
        options = _mapping(self.schema.get("properties"))
        return {name: self._resolved(_mapping(option)) for name, option in options.items()}

    @functools.cached_property
    def validation(self) -> Mapping[str, Plain]:
        """Schema of converted options: an option has its first type, or may be a list.

        Source: schemas/providers/README.md, "Types".
        """
        properties: dict[str, Plain] = {}
        for name, option in self.properties.items():
            kinds = option.get("type")
            if isinstance(kinds, list):
                kept: list[Plain] = [kinds[0], *(kind for kind in kinds[1:] if kind == "array")]
                option = {**option, "type": kept if len(kept) > 1 else kept[0]}
            properties[name] = dict(option)
        return {**self.schema, "properties": properties}

    @property
    def session(self) -> Mapping[str, Plain]:
        """`validation` for a session that runs a model: no option is required.

        The context already contains the options that a compile requires.
        """
        return {**self.validation, "required": []}

    def code(self, option: str) -> Code:
        """Error code for a wrong value of the option."""
        note = _mapping(self.properties.get(option, {}).get("x-epctx"))
        return Code(str(note.get("code", Code.WRONG_OPTION_VALUE)))

    def choices(self, option: str) -> Mapping[str, str]:
        """Other names of the option's values, with the value that the EP expects."""
        note = _mapping(self.properties.get(option, {}).get("x-epctx"))
        return {name: str(value) for name, value in _mapping(note.get("choices", {})).items()}

    @property
    def label_options(self) -> tuple[str, ...]:
        """Names of the options that the label depends on."""
        return tuple(_PLACEHOLDER.findall(self.knowledge.label))

    def label(self, options: Mapping[str, Plain]) -> str:
        """The `[ep]` of an entry with these options."""

        def value(match: re.Match[str]) -> str:
            name = match.group(1)
            default = self.properties.get(name, {}).get("default", "")
            return str(options.get(name, default))

        return _PLACEHOLDER.sub(value, self.knowledge.label)

    def _resolved(self, option: Mapping[str, Plain]) -> Mapping[str, Plain]:
        reference = option.get("$ref")
        if not isinstance(reference, str):
            return option
        target: Plain = dict(self.schema)
        for step in reference.removeprefix("#/").split("/"):
            target = _mapping(target).get(step)
        return {**_mapping(target), **option}


def _mapping(value: Plain) -> Mapping[str, Plain]:
    return value if isinstance(value, dict) else {}


def known() -> list[str]:
    """Names of all known providers, sorted."""
    return sorted({*bundled(), *_entry_points()})


def bundled() -> list[str]:
    """Names of the providers whose option schemas are part of epctx, sorted."""
    folder = "providers/"
    return [name.removeprefix(folder) for name in schema_names() if name.startswith(folder)]


@functools.cache
def find(provider: str) -> OptionSchema | None:
    """Option schema of a provider; None if it has none.

    Raises:
        ProviderUnavailable: an installed provider's schema cannot be used.
    """
    own = find_schema(f"providers/{provider}")
    if own is not None:
        return _parse(own, provider, f"providers/{provider}{SUFFIX}")
    for path in _shipped(provider):
        return _parse(_text(path, provider), provider, str(path), check=True)
    return None


def schema_of(entry: Node) -> OptionSchema | None:
    """Option schema of an `execution_providers` entry; None if its provider has none."""
    provider = entry.get("provider")
    name = provider.string if provider is not None else None
    return find(name) if name is not None else None


def can_share(entry: Node) -> bool:
    """Tell whether the entry's EP can share a context; True without a schema."""
    schema = schema_of(entry)
    return schema is None or schema.knowledge.can_share


def compile_memory(names: Iterable[str]) -> CompileMemory | None:
    """Memory of a compile on the first EP with a measurement; None without one."""
    schemas = (find(name) for name in names)
    measured = (each.knowledge.compile_memory for each in schemas if each is not None)
    return next(filter(None, measured), None)


def unshared_lists(entry: Node) -> Iterator[tuple[Node, str]]:
    """Options of the entry whose lists prevent sharing, each with the reason."""
    schema, given = schema_of(entry), entry.get("options")
    for name, why in schema.knowledge.unshared_lists.items() if schema is not None else ():
        option = given.get(name) if given is not None else None
        if option is not None and len(option.items) > 1:
            yield option, why


def text(provider: str) -> str | None:
    """Option schema of an installed third-party provider, as shipped; None if it has none."""
    return next((_text(path, provider) for path in _shipped(provider)), None)


def third_party() -> list[str]:
    """Names of installed third-party providers that ship an option schema, sorted."""
    own = bundled()
    return sorted(name for name in _entry_points() if name not in own and any(_shipped(name)))


@functools.cache
def _entry_points() -> dict[str, str]:
    # The import takes 20 ms, and epctx's own providers do not need it.

    points = entry_points(group=ENTRY_POINTS)
    return {point.name: point.module for point in points}


def _shipped(provider: str) -> Iterator[Path]:
    module = _entry_points().get(provider, "")
    root, *inner = module.split(".")
    try:
        spec = importlib.util.find_spec(root) if root else None
    except (ImportError, ValueError):
        spec = None
    for location in (spec.submodule_search_locations or ()) if spec else ():
        for depth in range(len(inner), -1, -1):
            path = Path(location, *inner[:depth], "schemas", f"{provider}{SUFFIX}")
            if path.is_file():
                yield path


def _text(path: Path, provider: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise _unusable(provider, str(path), str(error)) from None


def _parse(text: str, provider: str, place: str, *, check: bool = False) -> OptionSchema:

    try:
        schema = json.loads(text)
        if check:
            _check(schema)
        knowledge = msgspec.convert(schema["x-epctx"], Knowledge)
    except ValueError as error:
        raise _unusable(provider, place, first_line(error)) from None
    return OptionSchema(schema=schema, knowledge=knowledge)


def _check(schema: Mapping[str, Plain]) -> None:
    """Check that a third-party schema is valid and follows the rules. Raises ValueError."""
    rules = json.loads(read_schema("provider-options"))
    try:
        jsonschema.Draft202012Validator.check_schema(schema)
        jsonschema.validate(schema, rules, cls=jsonschema.Draft202012Validator)
    except (jsonschema.SchemaError, jsonschema.ValidationError) as error:
        raise ValueError(error.message) from None


def _unusable(provider: str, place: str, why: str) -> ProviderUnavailable:
    return ProviderUnavailable(
        f"the option schema of {provider} cannot be used",
        where=place,
        why=why,
        remedy=f"reinstall or repair the package that brings {provider}",
    )
