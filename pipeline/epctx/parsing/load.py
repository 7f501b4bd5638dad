"""Load a file into the manifest's types, or report all faults of the file."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from epctx.error_codes import Code
from epctx.errors import EpctxError, InvalidManifest, Violation, about
from epctx.manifest import (
    Composition,
    CompositionPart,
    Manifest,
    ModelGroup,
    ModelSource,
    PackageSettings,
    PartOutput,
    ProviderSpec,
    Target,
    Written,
)
from epctx.parsing import buckets, document, precedence
from epctx.parsing.document import Document, reader
from epctx.parsing.document import tree as problems
from epctx.parsing.document.tree import Node, Plain
from epctx.parsing.precedence import TargetTree, names, present
from epctx.parsing.rules import check as rules
from epctx.parsing.rules import compositions, options
from epctx.parsing.rules.settings import Places
from epctx.parsing.schema import apply as schema
from epctx.text import bytes_of, suggesting

T = TypeVar("T")
Settings: TypeAlias = dict[str, Plain]

_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?", re.ASCII)
_COMPARED = 2
"""Number of samples on which a quantized model is compared. With two samples, epctx can see whether
outputs depend on inputs."""
_EXACT = 2**53
"""Largest range in which every whole number is exact as a float."""


def load(path: Path, *, allow_outside: bool = False) -> Manifest:
    """Read, check and resolve a manifest.

    Args:
        path: the YAML file.
        allow_outside: allow paths that lead out of the manifest's folder.

    Raises:
        ManifestError: the manifest cannot be read.
        InvalidManifest: the manifest breaks the schema or rules; the error has every violation.
        ProviderUnavailable: an installed provider's option schema cannot be used.
    """
    read = document.read(path)
    faults = violations(read, allow_outside=allow_outside)
    if faults:
        raise InvalidManifest(faults)
    return parse(read)


def violations(
    read: Document, *, allow_outside: bool = False, partial: bool = False
) -> tuple[Violation, ...]:
    """Return every violation of a manifest, in the file's order; raises as `load` does.

    If the file is of another known kind, that is the only violation.

    Args:
        read: document of the manifest.
        allow_outside: allow paths that lead out of the manifest's folder.
        partial: allow missing files.
    """
    other = reader.refuse_content(read.root, Path(read.file))
    if other is not None:
        return tuple(
            problems.violations(
                [problems.at(read.root, *other, Code.MANIFEST_UNREADABLE)], file=read.file
            )
        )
    with suggesting():
        faults = schema.validate(read)
        broken = read.broken | {p.node for p in faults if p.node is not None}
        faults = [problem for problem in faults if problem.node not in read.broken]
        faults += rules.check_size(buckets.expand(read.root)) or rules.check(
            read, broken, allow_outside=allow_outside, partial=partial
        )
    unique = dict.fromkeys([*read.violations, *problems.violations(faults, file=read.file)])
    return tuple(sorted(unique, key=lambda violation: (violation.line, violation.column)))


def parse(read: Document) -> Manifest:
    """Convert a document without violations into the manifest; values are not checked again."""
    root, places = buckets.expand(read.root), Places(folder=read.path.parent)
    models = {
        name: _model(name, node, places) for name, node in root.mapping["models"].mapping.items()
    }
    return Manifest(
        name=root.mapping["name"].text,
        path=read.path,
        targets=tuple(_target(root, tree, models, places) for tree in precedence.targets(root)),
        package=_package(root.get("package"), places),
        sha256=read.sha256,
    )


@contextmanager
def located(manifest: Path) -> Iterator[None]:
    """Add line and column to an error of the body whose `where` is a path in the manifest."""
    try:
        yield
    except EpctxError as error:
        where = error.where or ""
        known = where.startswith(("model_groups.", "compose."))
        if error.line or not known or not manifest.is_file():  # a pipe is read once
            raise
        mark = buckets.expand(document.read(manifest).root).at(where).mark
        error.file, error.line, error.column = manifest.name, mark.line, mark.column
        with about(key=f"{manifest.name}:{mark.line}:{mark.column}"):
            raise


def seconds(duration: str) -> float:
    """Convert a duration like `1h30m` to seconds.

    Raises:
        ValueError: the text is not a duration.
    """
    match = _DURATION.fullmatch(duration)
    if match is None or not duration:
        raise ValueError(f"{duration!r} is not a duration")
    hours, minutes, rest = (int(part or 0) for part in match.groups())
    return float(hours * 3600 + minutes * 60 + rest)


def _model(name: str, node: Node, places: Places) -> ModelSource:
    settings = {**_settings(node), "name": name}
    sections = [settings, *([_section(settings, "reference")] if "reference" in settings else [])]
    for section in sections:
        for key in ("path", "external_data_dir", "custom_ops"):
            if key in section:
                section[key] = places.absolute(str(section[key])).as_posix()
    return _convert(settings, ModelSource)


def _package(node: Node | None, places: Places) -> PackageSettings:
    settings = _settings(node) if node is not None else {}
    for key in ("assets", "files"):
        for name, path in _section(settings, key).items():
            _section(settings, key)[name] = places.absolute(str(path)).as_posix()
    if node is not None and node.get("genai", "source") is not None:
        genai = _section(settings, "genai")
        genai["source"] = places.absolute(str(genai["source"])).as_posix()
    return _convert(settings, PackageSettings)


def _target(
    root: Node, tree: TargetTree, models: Mapping[str, ModelSource], places: Places
) -> Target:
    specs = {alias: _provider(alias, entry, places) for alias, entry in tree.providers.items()}
    groups = []
    for layered in tree.groups:
        node = layered.node
        group = _convert(_group_settings(layered.name, node, places), ModelGroup)
        group = msgspec.structs.replace(
            group,
            models=tuple(models[name] for name in names(node.mapping["models"])),
            execution_providers=tuple(
                specs[alias] for alias in names(node.mapping["execution_providers"])
            ),
        )
        groups.append(_with_samples(group) if node.get("verify", "inputs") is None else group)
    composed = {
        name: node
        for name, node in present(root.get("compose")).items()
        if compositions.is_built(node, tree)
    }
    return Target(
        name=tree.name or precedence.DEFAULT_TARGET,
        groups=tuple(groups),
        compositions=tuple(
            _composition(name, node, tree, places) for name, node in composed.items()
        ),
        written={layered.name: _written(root, tree, layered) for layered in tree.groups}
        | {name: {"compose": {name: node.plain()}} for name, node in composed.items()},
    )


def _written(root: Node, tree: TargetTree, layered: precedence.Layered) -> Written:
    node, models = layered.node, root.mapping["models"].mapping
    aliases = names(node.mapping["execution_providers"])
    return {
        "models": {name: _said(models[name]) for name in names(node.mapping["models"])},
        "execution_providers": {alias: tree.providers[alias].plain() for alias in aliases},
        "model_groups": {layered.name: node.plain()},
    }


def _said(model: Node) -> Plain:
    children = {key: child for key, child in model.mapping.items() if key != buckets.BUCKET}
    return msgspec.structs.replace(model, value=children).plain()


def _composition(name: str, node: Node, tree: TargetTree, places: Places) -> Composition:
    settings = _settings(node)
    settings.update(name=name, parts=[])
    _verify_inputs(settings, node, places)
    parts = []
    for key, part in node.mapping["parts"].mapping.items():
        chosen = compositions.group_of(key, part, tree)
        inputs = present(part.get("inputs"))
        parts.append(
            CompositionPart(
                name=key,
                group=chosen or "",
                model=compositions.model_of(key, part),
                prefix=_text(part, "prefix") or "",
                links={
                    own: PartOutput(
                        part=_text(origin, "part") or "", output=_text(origin, "output") or own
                    )
                    for own, origin in inputs.items()
                    if origin.get("part") is not None
                },
                inputs={
                    own: outer
                    for own, origin in inputs.items()
                    if (outer := _text(origin, "input")) is not None
                },
            )
        )
    return msgspec.structs.replace(_convert(settings, Composition), parts=tuple(parts))


def _text(node: Node, key: str) -> str | None:
    child = node.get(key)
    return None if child is None else child.string


def _provider(alias: str, entry: Node, places: Places) -> ProviderSpec:
    settings = _settings(entry)
    values = _settings(options.converted(entry))
    paths = options.path_options(entry) | options.file_options(entry, places)
    values.update({name: places.absolute(n.text).as_posix() for name, n in paths.items()})
    settings.update(alias=alias, options=values, path_options=[*sorted(paths)])
    return _convert(settings, ProviderSpec)


def _group_settings(name: str, node: Node, places: Places) -> Settings:
    """Settings of a group in the form of its type, without its models and EPs."""
    settings = _settings(node)
    settings.update(name=name, models=[], execution_providers=[])
    settings["sharing_groups"] = {
        key: list(names(members)) for key, members in present(node.get("sharing_groups")).items()
    }
    settings["session_options"] = {
        # ONNX Runtime reads only decimal numbers: 0x1 would be neither 0 nor 1.
        key: str(value.value)
        for key, value in present(node.get("session_options")).items()
    }
    optimize = _section(settings, "optimize")
    if isinstance(optimize.get("level"), list):
        optimize.update(level="explicit", passes=optimize["level"])
    partition = _section(settings, "partition")
    for key, value in _section(partition, "exclude").items():
        partition[f"exclude_{key}"] = value
    del partition["exclude"]
    pieces = partition.pop("pieces", None)
    if isinstance(pieces, dict):
        settings["pieces"] = pieces = {k: v for k, v in pieces.items() if v is not None}
        if "max_memory" in pieces:
            pieces["max_memory"] = bytes_of(str(pieces["max_memory"]))
    if settings.get("quantize") is not None:
        _quantize(_section(settings, "quantize"), node, places)
    verify = _section(settings, "verify")
    _in_seconds(settings, "timeout")
    _in_seconds(verify, "budget")
    _verify_inputs(settings, node, places)
    return settings


def _quantize(quantize: Settings, node: Node, places: Places) -> None:
    """Convert `quantize` to the form of its type."""
    for key, value in _section(quantize, "exclude").items():
        quantize[f"exclude_{key}"] = value
    patterns = node.get("quantize", "calibration", "files")
    if patterns is not None:
        _section(quantize, "calibration")["files"] = _files(patterns, places)


def _files(patterns: Node, places: Places) -> list[Plain]:
    """Files that match a list of patterns, each once, in the order of the patterns."""
    paths = (path.as_posix() for text in names(patterns) for path in places.files(text))
    return [*dict.fromkeys(paths)]


def _with_samples(group: ModelGroup) -> ModelGroup:
    """Compare the group on its first samples; the ranges fit them better than random inputs.

    Samples for several models are assigned when the models are read.
    """
    files = group.quantize.calibration.files if group.quantize is not None else ()
    if not files or len(group.models) > 1:
        return group
    folder = files[0].parent if files[0].suffix == ".pb" else None
    chosen = files[:_COMPARED] if folder is None else [f for f in files if f.parent == folder]
    inputs = msgspec.structs.replace(group.verify.inputs, files=tuple(chosen))
    return msgspec.structs.replace(
        group, verify=msgspec.structs.replace(group.verify, inputs=inputs)
    )


def _verify_inputs(settings: Settings, node: Node, places: Places) -> None:
    """Convert `verify.inputs` to the form of its type: sizes to lists, patterns to files."""
    if node.get("verify", "inputs", "dimensions") is not None:
        inputs = _section(_section(settings, "verify"), "inputs")
        for name, size in _section(inputs, "dimensions").items():
            _section(inputs, "dimensions")[name] = size if isinstance(size, list) else [size]
    patterns = node.get("verify", "inputs", "files")
    if patterns is not None:
        inputs = _section(_section(settings, "verify"), "inputs")
        inputs["files"] = _files(patterns, places)


def _section(settings: Settings, key: str) -> Settings:
    """Mapping under a key, created if missing."""
    section = settings.setdefault(key, {})
    if not isinstance(section, dict):
        raise TypeError(f"{key} is not a mapping")
    return section


def _in_seconds(settings: Settings, key: str) -> None:
    duration = settings.get(key)
    if isinstance(duration, str):
        settings[key] = seconds(duration)


def _settings(node: Node) -> Settings:
    plain = _whole(node.plain())
    return plain if isinstance(plain, dict) else {}


def _whole(value: Plain) -> Plain:
    """Turn 1.0 into 1; JSON Schema accepts it as an integer, the types do not."""
    if isinstance(value, dict):
        return {key: _whole(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) <= _EXACT:
        return int(value)
    return value


def _convert(settings: Settings, kind: type[T]) -> T:
    def path(wanted: type, value: object) -> object:
        return wanted(value)

    return msgspec.convert(settings, kind, dec_hook=path)
