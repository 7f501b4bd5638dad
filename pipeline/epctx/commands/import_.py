"""`epctx import`: write the manifest that corresponds to another tool's command line."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePath, PureWindowsPath
from typing import Final

import msgspec
from msgspec import Struct

from epctx.arguments import Place
from epctx.commands.init import command as manifests
from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, UsageError, Violation
from epctx.files.entries import read_document
from epctx.files.regular import absent
from epctx.parsing.schema import providers

TOOL: Final = "ep_weight_sharing_ctx_gen"
_BEFORE: Final = "onnxruntime_qnn_ctx_gen"
"""Former name of the tool."""
_FLAGS: Final = "e:p:i:C:vh"
_PROVIDERS: Final = {
    "qnn": "QNNExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """Parsed command line of the tool.

    Attributes:
        words: all words without the tool's name.
        provider: ONNX Runtime's name of the EP given by `-e`.
        plugin: JSON file given by `-p`; None without a plugin.
        options: options given by `-i`; the last value of a key wins, as in the tool.
        entries: session entries given by `-C`.
        verbose: True if `-v` is given.
        models: models in order, as typed.
    """

    words: tuple[str, ...]
    provider: str
    plugin: Path | None
    options: dict[str, str]
    entries: dict[str, str]
    verbose: bool
    models: tuple[str, ...]


def parse(line: str) -> Flags:
    """Parse a command line, with or without the tool's name in front.

    Raises:
        UsageError: the tool does not accept the command line, or the line only asks for help.
    """
    words = _words(line)
    try:
        flags, arguments = getopt.gnu_getopt(words, _FLAGS)
    except getopt.GetoptError as error:
        raise _wrong(
            f"there is no flag -{error.opt}" if "recognized" in error.msg else error.msg,
            remedy="-e, -p, -i, -C and -v are known, and one list of models",
        ) from error
    values = {flag: text for flag, text in flags if flag not in ("-i", "-C")}
    if "-h" in values:
        raise _wrong("-h only prints help", remedy="remove it")
    return Flags(
        words=tuple(words),
        provider=_provider(values.get("-e", "qnn")),
        plugin=Path(values["-p"]) if "-p" in values else None,
        options={key: value for flag, key, value in _pairs(flags) if flag == "-i"},
        entries=_entries(flags),
        verbose="-v" in values,
        models=_models(arguments),
    )


def _words(line: str) -> list[str]:
    """Split words as a shell does, but keep backslashes, which Windows paths contain."""
    lexer = shlex.shlex(line.replace("\\\r\n", " ").replace("\\\n", " "), posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise _wrong(
            "a quotation mark is not closed",
            remedy="quote words with spaces, and the whole line with the other quotation marks",
        ) from error
    return words[1:] if words and _is_tool(words[0]) else words


def _is_tool(word: str) -> bool:
    path: PurePath = PureWindowsPath(word)  # accepts / and \
    return path.name.lower().removesuffix(".exe") in (TOOL, _BEFORE)


def _provider(name: str) -> str:
    if name not in _PROVIDERS:
        names = ", ".join(_PROVIDERS)
        raise _wrong(
            f"-e {name} is not an EP of {TOOL}", remedy=f"use one of {names}; for a plugin use -p"
        )
    return _PROVIDERS[name]


def _pairs(flags: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    for flag, text in flags:
        for token in text.split() if flag in ("-i", "-C") else ():
            key, separator, value = token.partition("|")
            if not key or not separator:
                raise _wrong(
                    f"{flag}: {token!r} is not a pair", remedy='write "key|value key|value"'
                )
            yield flag, key, value


def _entries(flags: list[tuple[str, str]]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for flag, key, value in _pairs(flags):
        if flag == "-C" and key in entries:
            raise _wrong(f"-C: {key} is given twice", remedy="remove one of them")
        if flag == "-C":
            entries[key] = value
    return entries


def _models(arguments: list[str]) -> tuple[str, ...]:
    if len(arguments) != 1:
        what = (
            f"{' '.join(arguments)!r} are {len(arguments)} words"
            if arguments
            else "no model is named"
        )
        raise _wrong(what, remedy="name the models in one word, with commas: a.onnx,b.onnx")
    models = tuple(arguments[0].split(","))
    if not all(models):
        raise _wrong(f"{arguments[0]!r} has a comma too many", remedy="remove it")
    return models


def _wrong(what: str, *, remedy: str) -> UsageError:
    return UsageError(what, where=TOOL, remedy=remedy, code=Code.COMMAND_LINE)


_OWN: Final = {
    "ep.context_enable": "a build always does",
    "ep.context_embed_mode": f"{TOOL} writes binaries beside the models, and so does embed_mode: 0",
    "ep.context_file_path": f"{TOOL} passes it over; `epctx build --out` says where files go",
    "ep.share_ep_contexts": "`sharing_groups` says it",
    "ep.stop_share_ep_contexts": "`sharing_groups` says it",
}
"""Session entries that a manifest does not need, with the reason."""
_LARGEST: Final = 1 << 20
"""Largest size of a JSON file of `-p`, in bytes; real files have a few hundred."""
_QNN: Final = "QNNExecutionProvider"
_PREFIX: Final = "ep.context_node_name_prefix"
_INITIALIZERS: Final = "ep.context_model_external_initializers_file_name"
_NO_FALLBACK: Final = "session.disable_cpu_ep_fallback"
_KEYS: Final = (
    ("-i", re.compile(r"execution_providers\.\w+\.options\.?(.*)")),
    ("-C", re.compile(r"model_groups\.main\.session_options\.?(.*)")),
)


class _Plugin(Struct, kw_only=True):
    """Content of the JSON file of `-p`."""

    ep_library_registration_name: str
    ep_library_path: str
    default_ep_options: dict[str, str] = {}
    selected_ep_name: str = ""
    selected_ep_device_indices: list[int] = []


@dataclass(frozen=True, kw_only=True)
class _Translated:
    """Manifest entries made from the flags, and the dropped flags with the reasons."""

    provider: str
    options: Mapping[str, str]
    unknown: bool = False
    group: tuple[str, ...] = ()
    dropped: tuple[str, ...] = field(default=())


def write(line: str, path: Path | None = None, *, force: bool = False) -> Path:
    """Write the manifest, as described in `api.import_ep_weight_sharing`."""
    flags = parse(line)
    models = [Path(model) for model in flags.models]
    for model in models:
        if Place().check(model) is None:
            raise UsageError(
                absent(model).what,
                file=model.as_posix(),
                remedy="run this in the folder of the command line, or name its models by path",
                code=Code.NO_SUCH_PATH,
            )
    path = path or manifests.folder(models) / manifests.NAME
    manifests.refuse_files([path], force=force)
    manifest = "\n".join(_text(flags, models, path)) + "\n"
    manifests.save({path: manifests.checked(manifest, path, _refusal)})
    return path


def _text(flags: Flags, models: list[Path], path: Path) -> Iterator[str]:
    translated = _with_entries(
        _from_plugin(flags, path) if flags.plugin else _from_flags(flags), flags.entries
    )
    keys, alias = manifests.model_names(models), manifests.alias(translated.provider)
    yield f"# From: {TOOL} {_shown(flags.words)}"
    yield from (f"#   {_printable(reason)}" for reason in translated.dropped)
    if flags.verbose:
        yield "#   -v: it is `epctx build -v`"
    yield from manifests.HEAD
    yield f"name: {manifests.manifest_name(models, path)}"
    yield ""
    yield from manifests.model_lines(models, path)
    yield ""
    yield "execution_providers:"
    yield from manifests.provider_lines(translated.provider, translated.options)
    if translated.unknown:
        yield "    allow_unknown_options: true    # epctx knows nothing of this EP's options"
    yield ""
    yield "model_groups:"
    yield "  main:"
    yield f"    models: [{', '.join(keys)}]"
    yield f"    execution_providers: [{alias}]"
    yield from manifests.sharing_lines(keys, len(keys) > 1)
    yield from translated.group


def _from_flags(flags: Flags) -> _Translated:
    """Take the EP of `-e` and its options, without options that a manifest does not need."""
    reasons = {key: _needless(key, value) for key, value in flags.options.items()}
    return _Translated(
        provider=flags.provider,
        options={key: value for key, value in flags.options.items() if not reasons[key]},
        dropped=tuple(f"-i {key}: {reason}" for key, reason in reasons.items() if reason),
    )


def _needless(key: str, value: str) -> str:
    """Reason why a QNN option is left out; empty if the option is kept."""
    if key == "backend_path":
        if "htp" not in PureWindowsPath(value).name.lower():
            raise UsageError(
                f"{value!r} is not an HTP library",
                where=f"{TOOL}: -i {key}",
                remedy="remove it: contexts are compiled for the HTP, QNN's NPU",
            )
        return "the HTP library of the installed onnxruntime-qnn is taken"
    if key == "enable_htp_weight_sharing":
        return "`sharing_groups` shares; onnxruntime-qnn 2.7 does nothing with it"
    if key in ("vtcm_mb", "htp_arch") and value == "0":
        return "0 is none, which is the default"
    return ""


def _from_plugin(flags: Flags, path: Path) -> _Translated:
    """Take the EP from the JSON file of `-p`. `-i` is ignored beside `-p`, as in the tool."""
    plugin = _read(flags)
    if not plugin.selected_ep_name:
        raise UsageError(
            "the plugin's JSON file does not name its EP",
            file=f"{flags.plugin}",
            why="selected_ep_device_indices are places in a list that differs between hosts",
            remedy="set selected_ep_name instead",
        )
    translated = replace(_from_flags(replace(flags, options=plugin.default_ep_options)), dropped=())
    translated = replace(translated, provider=plugin.selected_ep_name)
    ignored = tuple(f"-i {key}: {TOOL} passes it over beside -p" for key in flags.options)
    if providers.find(plugin.selected_ep_name) is not None:
        installed = f"ep_library_path: the installed library of {plugin.selected_ep_name} is taken"
        return replace(translated, dropped=(installed, *ignored))
    library = manifests.relative(Path(plugin.ep_library_path), path)
    options = {"plugin.library": library, **plugin.default_ep_options}
    return replace(translated, options=options, unknown=True, dropped=ignored)


def _read(flags: Flags) -> _Plugin:
    assert flags.plugin is not None
    file = flags.plugin.as_posix()
    remedy = "give -p the same JSON file as the tool"
    with UsageError.if_refused("cannot be read", file=file, remedy=remedy):
        content = read_document(flags.plugin, _LARGEST)
    large = len(content) > _LARGEST
    try:
        return msgspec.json.decode(b"" if large else content, type=_Plugin)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"it is larger than {_LARGEST:,} bytes" if large else str(error)
        raise UsageError(
            "is not a plugin's JSON file", file=file, why=why, remedy=remedy
        ) from error


def _with_entries(translated: _Translated, entries: Mapping[str, str]) -> _Translated:
    """Add the session entries of `-C` as keys of the group."""
    ignored = {_PREFIX: "QNN 2.7 names its nodes itself"} if translated.provider == _QNN else {}
    remaining = {key: value for key, value in entries.items() if key not in _OWN}
    lines = []
    prefix = remaining.pop(_PREFIX, "")
    if prefix and not ignored:
        lines.append(f"    node_name_prefix: {manifests.scalar(prefix)}")
    if file := remaining.pop(_INITIALIZERS, ""):
        lines.append("    # A file for each model: in one, the second would overwrite the first.")
        name = manifests.quoted(f"{{model}}_{file}")
        lines.append(f"    external_initializers: {{file: {name}, size_threshold: 0}}")
    if remaining.pop(_NO_FALLBACK, "0") == "1":
        lines.append(f"    partition: {{require_coverage: 1}}    # {_NO_FALLBACK}")
    if remaining:
        lines.append("    session_options:")
    for key, value in remaining.items():
        lines.append(f"      {manifests.scalar(key)}: {manifests.quoted(value)}")
    reasons = {**_OWN, **ignored}
    dropped = tuple(f"-C {key}: {reason}" for key, reason in reasons.items() if key in entries)
    return replace(translated, group=tuple(lines), dropped=(*translated.dropped, *dropped))


def _shown(words: tuple[str, ...]) -> str:
    """Join the words into one comment line."""
    quoted = [f'"{word}"' if re.search(r"[\s|]", word) else word for word in words]
    return _printable(" ".join(" ".join(quoted).split()))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _refusal(violation: Violation) -> EpctxError:
    remedy = violation.remedy
    if violation.code == Code.SHARING:
        remedy = "name one model, or write a manifest without sharing: `epctx init`"
    where = f"{TOOL}: {_flag(violation.path)}"
    return ManifestError(violation.what, where=where, remedy=remedy, code=violation.code)


def _flag(path: str) -> str:
    """Flag that produced a place in the manifest."""
    for flag, pattern in _KEYS:
        if match := pattern.fullmatch(path):
            return f"{flag} {match[1].strip('[]').strip(chr(34))}".rstrip()
    return path
