"""`epctx init`: write a starter manifest."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from epctx import codec
from epctx.commands.init import genai
from epctx.commands.init import options as choice
from epctx.commands.init.options import NO_SIZES, REFERENCE, SizeOptions
from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, StorageError, UsageError, Violation
from epctx.files import filenames
from epctx.files.atomic import replacing
from epctx.manifest import PRESETS
from epctx.parsing import document, load
from epctx.parsing.document import tree
from epctx.parsing.schema import apply as schemas
from epctx.parsing.schema import providers

if TYPE_CHECKING:
    import onnx

    from epctx.graph.inputs import InputSpec

SAMPLES = "calib"
"""Folder for samples, beside the manifest."""


def quantize_lines(
    models: Sequence[Path], manifest: Path, provider: str, *, requested: bool
) -> Iterator[str]:
    """Lines with `quantize` if it is requested, else a comment if quantization would help.

    Raises:
        UsageError: quantization is requested, and a model is not float32.
        ModelError: a model cannot be read.
    """
    if requested:
        _refuse_others(models)
        yield "    quantize:"
        yield from _calibration(models, manifest)
    elif (
        PRESETS.get(provider) == "qnn"
        and not any(map(Path.is_dir, models))
        and all(_precision(each) == "float32" for each in models)
    ):
        yield (
            "    # quantize: {calibration: {random: true}}    # to integers: "
            "`epctx init --quantize` says how"
        )


def _calibration(models: Sequence[Path], manifest: Path) -> Iterator[str]:
    from epctx.graph import inputs
    from epctx.graph.serde import reader

    files = f"{{files: [{SAMPLES}/*.npz]}}"
    if any((manifest.parent / SAMPLES).glob("*.npz")):
        yield f"      calibration: {files}"
        return
    yield "      # Random samples try out whether it compiles. For real ranges write some hundred"
    yield f"      # inputs, as the model will get them, into {SAMPLES}/, a file each, by numpy:"
    for model in models:
        specs = inputs.specs(reader.read(model))
        arrays = ", ".join(f"{spec.name!r}: ..." for spec in specs)
        yield f"      #   savez('{SAMPLES}/0.npz', **{{{arrays}}})    # {_printable(specs)}"
    yield f"      # Then put `calibration: {files}` here, and run `epctx build`."
    yield "      calibration: {random: true}"


def _printable(specs: Sequence[InputSpec]) -> str:
    """Input types on one line, with escaped dimension names."""
    return repr(", ".join(map(str, specs)))[1:-1]


def _precision(model: Path) -> str:
    """Return float32 if all outputs are float32, else the first other precision."""
    from epctx.graph.serde import reader
    from epctx.verification.numbers.tolerances import precisions

    each = precisions(reader.read(model)).values()
    return next((word for word in each if word != "float32"), "float32")


def _refuse_others(models: Sequence[Path]) -> None:
    for model in models:
        if model.is_dir():
            what, remedy = "a folder of onnxruntime-genai", "its model builder quantizes: `-p int4`"
        elif (precision := _precision(model)) != "float32":
            what, remedy = precision, "remove --quantize, or name its float32 model"
        else:
            continue
        raise UsageError(
            f"--quantize needs a float32 model, but this is {what}",
            file=model.as_posix(),
            remedy=remedy,
            code=Code.COMMAND_LINE,
        )


NAME = "epctx.yaml"
_SCHEMA = "epctx.manifest.schema.json"
_MODELINE = f"# yaml-language-server: $schema={_SCHEMA}"
_HINT = "# Editors complete it with a schema beside it: `epctx init --schema` writes both."
HEAD: Final = (
    "# A manifest of epctx: `epctx validate` checks it, `epctx build` builds it.",
    _HINT,
    "schema_version: 1",
)
LINKED: Final = "# A model here is a link out of this folder: commands need `--allow-outside`."
ENDED: Final = "# The search for sizes of"
_PLAIN = re.compile(r"[A-Za-z0-9_./+-][A-Za-z0-9_./+ -]*(?<! )")
_OPTION = re.compile(r"execution_providers\.\w+\.options\.?(.*)")


def write(
    models: Sequence[Path],
    path: Path | None = None,
    *,
    provider: str = REFERENCE,
    options: Mapping[str, str] | None = None,
    share: bool = False,
    quantize: bool = False,
    size_options: SizeOptions = NO_SIZES,
    schema: bool = False,
    force: bool = False,
) -> Path:
    """Write a starter manifest for `models`, as described in `api.init`."""
    path = path or folder(models) / NAME
    all_options = dict(options or {})
    beside: dict[Path, str] = {}
    if any(model.is_dir() for model in models):
        for option, content in genai.option_files(provider, all_options).items():
            file = path.with_name(f"{path.stem}.{option}.json")
            all_options[option], beside[file] = file.name, f"{json.dumps(content)}\n"
    refuse_files((path, *beside), force=force)
    manifest = text(
        models,
        path,
        provider=provider,
        options=all_options,
        share=share,
        quantize=quantize,
        size_options=size_options,
    )
    manifest = checked(manifest, path, _refusal)
    if schema:
        manifest = manifest.replace(_HINT, _MODELINE, 1)
        beside[path.with_name(_SCHEMA)] = schemas.text("manifest")
    save({**beside, path: manifest})
    return path


def refuse_files(paths: Iterable[Path], *, force: bool) -> None:
    """Refuse to replace existing files unless `force` is set.

    Raises:
        UsageError: one of the files exists.
    """
    for file in paths:
        if not force and file.exists():
            raise UsageError(
                "the file already exists",
                file=file.as_posix(),
                remedy="choose another with --out, or replace it with --force",
                code=Code.IN_THE_WAY,
            )


def save(contents: Mapping[Path, str]) -> None:
    """Write files; each is written whole or not at all.

    Raises:
        StorageError: a file cannot be written.
    """
    for file, content in contents.items():
        with (
            StorageError.if_refused(
                "the manifest cannot be written",
                file=file.as_posix(),
                remedy="choose a folder that you may write to with --out",
            ),
            replacing(file) as stream,
        ):
            stream.write(content.encode())


def folder(models: Sequence[Path]) -> Path:
    """Folder for a manifest that names all models: the current folder, else their nearest parent.

    Raises:
        UsageError: only the root of the file system holds all models.
    """
    paths = [_absolute(model) for model in models]
    places = [path if path.is_dir() else path.parent for path in paths]
    current = Path.cwd()
    if all(place.is_relative_to(current) for place in places):
        return Path()
    try:
        parent = Path(os.path.commonpath(places))
    except ValueError:  # Windows: the models are on several drives
        parent = Path(places[0].anchor)
    if parent == Path(parent.anchor):
        raise UsageError(
            "no folder holds all the models",
            where=", ".join(model.as_posix() for model in models),
            remedy="copy them into one folder: a manifest can only name files beside or below it",
        )
    return parent


def text(
    models: Sequence[Path],
    path: Path,
    *,
    provider: str = REFERENCE,
    options: Mapping[str, str],
    share: bool = False,
    quantize: bool = False,
    size_options: SizeOptions = NO_SIZES,
) -> str:
    """Text of the starter manifest. Raises as `write` does."""
    quantizing = [*quantize_lines(models, path, provider, requested=quantize)]
    if any(model.is_dir() for model in models):
        return _of_folder(models, path, provider, options)
    if share and len(models) < 2:
        raise UsageError("--share needs at least two models", remedy="name the models that share")
    keys = model_names(models)
    name = manifest_name(models, path)
    lines = [*HEAD, f"name: {scalar(name)}", "", *model_lines(models, path, size_options)]
    lines += ["", "execution_providers:", *provider_lines(provider, options), "", "model_groups:"]
    lines += ["  main:", f"    models: [{', '.join(map(scalar, keys))}]"]
    lines += [f"    execution_providers: [{alias(provider)}]", *sharing_lines(keys, share)]
    lines += quantizing
    lines += [
        "    # embed_mode: 1   # in the model, not beside it: QNN cannot reload it after a restart",
        "    # optimize: {level: none}    # the EP gets the model as it is; default: basic",
        "    # partition: {require_coverage: 0.9}    # fail if the EP takes less of the model",
        *_verify_lines(path, size_options),
    ]
    return "\n".join(lines) + "\n"


def _of_folder(
    models: Sequence[Path], path: Path, provider: str, options: Mapping[str, str]
) -> str:
    """Text of the manifest for an onnxruntime-genai folder."""
    if len(models) > 1:
        raise UsageError(
            f"{len(models)} models or folders were named, and at least one is a folder",
            remedy="name one folder of onnxruntime-genai, or only ONNX models",
        )
    genai_folder = genai.folder(models[0])
    name = _name(models[0].resolve().name, "llm")
    lines = [*HEAD, f"name: {scalar(name)}", "", "models:"]
    lines += genai.models(genai_folder, scalar(relative(genai_folder.model, path)), scalar)
    lines += ["", "execution_providers:", *provider_lines(provider, options), ""]
    lines += genai.group(
        genai_folder, provider, alias(provider), scalar(relative(genai_folder.path, path))
    )
    return "\n".join(lines) + "\n"


def model_names(models: Sequence[Path]) -> list[str]:
    """Key for each model: a safe form of its file name, made unique by a number."""
    keys: list[str] = []
    for model in models:
        stem = _name(model.stem, "model")
        used_names = {filenames.fold(key) for key in keys}
        numbered = (f"{stem}_{number}" for number in range(2, len(models) + 2))
        keys.append(next(key for key in (stem, *numbered) if filenames.fold(key) not in used_names))
    return keys


def manifest_name(models: Sequence[Path], path: Path) -> str:
    """Value of `name`: the name of the only model, else the folder's name."""
    keys = model_names(models)
    return keys[0] if len(keys) == 1 else _name(path.absolute().parent.name, "models")


def model_lines(
    models: Sequence[Path], path: Path, size_options: SizeOptions = NO_SIZES
) -> Iterator[str]:
    """The `models` section, with sizes for dynamic dimensions, for the manifest at `path`.

    Raises as `write` does.
    """
    from epctx.graph import inputs
    from epctx.graph.serde import reader

    protos = [reader.read(model) for model in models]
    fed = [inputs.specs(proto) for proto in protos]
    size_options.refuse_unknown(fed)
    samples = (path.parent / SAMPLES).glob("*.npz")
    size_options = replace(size_options, files=(*size_options.files, *sorted(samples)))
    yield "models:"
    for key, model, proto, specs in zip(model_names(models), models, protos, fed, strict=True):
        yield f"  {scalar(key)}:"
        yield f"    path: {scalar(relative(model, path))}"
        yield from (f"    {line}" for line in _shapes(model, proto, specs, size_options))


def _verify_lines(path: Path, size_options: SizeOptions) -> Iterator[str]:
    """The `verify` section, with the input files that the user gave."""
    if size_options.files:
        listed = ", ".join(scalar(relative(file, path)) for file in size_options.files)
        yield f"    verify: {{inputs: {{files: [{listed}]}}}}"
    else:
        yield "    # verify: {tolerance: {cosine_min: 0.999}, budget: 20m}    # default: by EP; 5m"


def alias(provider: str) -> str:
    """Short EP name for the manifest: `qnn` for QNNExecutionProvider."""
    return _name(provider.removesuffix("ExecutionProvider").lower(), "ep")


def _shapes(
    model: Path, proto: onnx.ModelProto, inputs: Sequence[InputSpec], size_options: SizeOptions
) -> Iterator[str]:
    """Lines with sizes for dynamic dimensions; commented out if the model does not run at them."""
    from epctx.commands.init import sizes

    sized = sizes.find(model, proto, inputs, size_options)
    if not sized.sizes:
        return
    mark = "" if sized.runs else "# "
    if sized.ended:
        yield f"{ENDED} {quoted(model.name)} ended after {sized.ended}"
    if sized.why:
        yield f"# ONNX Runtime does not run it at these sizes: {quoted(sized.why)}"
    axes = [(s, name, s.shape[axis]) for s in inputs for axis, name in s.open.items()]
    symbols = dict.fromkeys(name for _, name, dim in axes if dim is not None)
    unnamed = dict.fromkeys(s.name for s, _, dim in axes if dim is None)
    shapes = {s.name: list(s.fixed(sized.sizes).shape) for s in inputs if s.name in unnamed}
    if symbols:
        entries = ", ".join(f"{scalar(name)}: {sized.sizes[name]}" for name in symbols)
        yield f"{mark}dimensions: {{{entries}}}"
    if shapes:
        entries = ", ".join(f"{scalar(name)}: {shape}" for name, shape in shapes.items())
        yield f"{mark}shapes: {{{entries}}}"
    guessed = dict.fromkeys(
        name if dim is not None else s.name for s, name, dim in axes if name in sized.guessed
    )
    if guessed:
        yield "# NPUs want fixed sizes, and these are guesses. Set yours, and remove their names:"
        yield f"{mark}guessed: [{', '.join(map(scalar, guessed))}]"


def provider_lines(provider: str, options: Mapping[str, str]) -> Iterator[str]:
    """Entry of `execution_providers`; advised options that are missing are named in comments."""
    schema = providers.find(provider)
    properties = schema.properties if schema is not None else {}
    yield f"  {alias(provider)}:"
    yield f"    provider: {scalar(provider)}"
    if options:
        yield "    options:"
    for name, value in options.items():
        yield f"      {scalar(name)}: {_option(value, properties.get(name))}"
    for each in choice.left_out(provider, options):
        yield f"    # without {each.options[0]} {each.without}: {each.remedy}"
    if not options:
        yield f"    # options: {{}}    # `epctx schema providers/{provider}` lists them"


def sharing_lines(keys: Sequence[str], share: bool) -> Iterator[str]:
    """The `sharing_groups` section, or a comment that shows it for several models."""
    listed = f"[{', '.join(map(scalar, keys))}]"
    if share:
        yield "    sharing_groups:    # one context for all: the first names the binary"
        yield f"      main: {listed}"
    elif len(keys) > 1:
        yield f"    # sharing_groups: {{main: {listed}}}    # one context, weights stored once"


def checked(content: str, path: Path, refusal: Callable[[Violation], EpctxError]) -> str:
    """Return the manifest, with a comment if a model is a link out of its folder. Turn other
    violations into an error about the arguments.
    """
    parsed = document.parse(content.encode(), file=path.as_posix(), path=path.absolute())
    for violation in load.violations(parsed, allow_outside=True):
        raise refusal(violation)
    linked = False
    for violation in load.violations(parsed):
        if not violation.path.startswith("models."):
            raise refusal(violation)
        linked = True
    return content.replace(HEAD[0], f"{HEAD[0]}\n{LINKED}", 1) if linked else content


def _refusal(violation: Violation) -> EpctxError:
    option = _OPTION.fullmatch(violation.path)
    if violation.path.endswith(".sharing_groups"):
        return UsageError(violation.what, where="--share", remedy=violation.remedy)
    if option is not None:
        where = f"--option {option.group(1)}".rstrip()
        return ManifestError(
            violation.what, where=where, remedy=violation.remedy, code=violation.code
        )
    if violation.path.startswith("execution_providers."):
        return ManifestError(
            violation.what, where="--provider", remedy=violation.remedy, code=violation.code
        )
    return UsageError(violation.what, where=violation.path, remedy=violation.remedy)


def _absolute(path: Path) -> Path:
    """Absolute path without `..`; links are not followed."""
    return Path(os.path.normpath(path.absolute()))


def relative(model: Path, manifest: Path) -> str:
    """Path of a file as written in the manifest.

    Raises:
        UsageError: the file lies outside the manifest's folder.
    """
    folder, path = _absolute(manifest.parent), _absolute(model)
    for base, target in ((folder, path), (folder.resolve(), model.resolve())):
        if target.is_relative_to(base):
            return target.relative_to(base).as_posix()
    raise UsageError(
        "the model lies outside the manifest's folder",
        file=model.as_posix(),
        remedy="remove --out: the manifest goes to the nearest folder that holds all models",
    )


def _name(text: str, fallback: str) -> str:
    """Turn a text into a safe file name that leaves room for a number."""
    safe = re.sub(r"[^A-Za-z0-9_.+-]+", "_", text).lstrip(".+-")[: filenames.MAX_LENGTH - 10]
    safe = safe.rstrip(".") if safe.strip("_.+-") else fallback
    return f"_{safe}" if filenames.problem(safe) else safe


def scalar(text: str) -> str:
    """Write a text as a YAML scalar, in quotes if YAML would read it as another value."""
    if _PLAIN.fullmatch(text) and tree.resolve(text) == text and not text.startswith("-"):
        return text
    return quoted(text)


def _option(value: str, schema: Mapping[str, object] | None) -> str:
    """Write an option's value as text if the option may be text, else as YAML reads it.

    Args:
        schema: schema of the option; None if it is unknown.
    """
    types = "string" if schema is None else str(schema.get("type", ""))
    if value[:1] == "[" and value[-1:] == "]" and "array" in types:
        items = [item.strip() for item in value[1:-1].split(",") if item.strip()]
        return f"[{', '.join(scalar(item) for item in items)}]"
    if "string" in types:
        return scalar(value)
    return value if _PLAIN.fullmatch(value) and not value.startswith("-") else quoted(value)


def quoted(text: str) -> str:
    """Write a text in double quotes for YAML, with JSON's escapes, but no surrogate pairs.

    Raises:
        UsageError: the value is not valid text; file names can be invalid.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise codec.no_text(error) from error
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(character: str) -> str:
    if ord(character) <= 0xFFFF:
        return json.dumps(character)[1:-1]
    return character if character.isprintable() else f"\\U{ord(character):08x}"
