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

from epctx.commands.init import command as manifests
from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, UsageError, Violation
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
        found, rest = getopt.gnu_getopt(words, _FLAGS)
    except getopt.GetoptError as error:
        raise _wrong(
            f"there is no flag -{error.opt}" if "recognized" in error.msg else error.msg,
            remedy="-e, -p, -i, -C and -v are known, and one list of models",
        ) from error
    told = {flag: text for flag, text in found if flag not in ("-i", "-C")}
    if "-h" in told:
        raise _wrong("-h asks for help, and builds nothing", remedy="leave it away")
    return Flags(
        words=tuple(words),
        provider=_provider(told.get("-e", "qnn")),
        plugin=Path(told["-p"]) if "-p" in told else None,
        options={key: value for flag, key, value in _pairs(found) if flag == "-i"},
        entries=_entries(found),
        verbose="-v" in told,
        models=_models(rest),
    )


def _words(line: str) -> list[str]:
    """Split words as a shell does, but keep backslashes, which Windows paths contain."""
    lexer = shlex.shlex(line.replace("\\\r\n", " ").replace("\\\n", " "), posix=True)
    lexer.whitespace_split, lexer.escape, lexer.commenters = True, "", ""
    try:
        words = list(lexer)
    except ValueError as error:
        raise _wrong(
            "a quotation mark has no second one",
            remedy="put what has spaces in quotation marks, and the whole in the other kind",
        ) from error
    return words[1:] if words and _is_tool(words[0]) else words


def _is_tool(word: str) -> bool:
    path: PurePath = PureWindowsPath(word)  # accepts / and \
    return path.name.lower().removesuffix(".exe") in (TOOL, _BEFORE)


def _provider(name: str) -> str:
    if name not in _PROVIDERS:
        known = ", ".join(_PROVIDERS)
        raise _wrong(f"-e {name} is no EP of {TOOL}", remedy=f"it has {known}; a plugin is -p")
    return _PROVIDERS[name]


def _pairs(found: list[tuple[str, str]]) -> Iterator[tuple[str, str, str]]:
    for flag, text in found:
        for token in text.split() if flag in ("-i", "-C") else ():
            key, separator, value = token.partition("|")
            if not key or not separator:
                raise _wrong(f"{flag}: {token!r} is no pair", remedy='write "key|value key|value"')
            yield flag, key, value


def _entries(found: list[tuple[str, str]]) -> dict[str, str]:
    entries: dict[str, str] = {}
    for flag, key, value in _pairs(found):
        if flag == "-C" and key in entries:
            raise _wrong(f"-C: {key} is there twice", remedy="leave one of them")
        if flag == "-C":
            entries[key] = value
    return entries


def _models(rest: list[str]) -> tuple[str, ...]:
    if len(rest) != 1:
        what = f"{' '.join(rest)!r} are {len(rest)} words" if rest else "no model is named"
        raise _wrong(what, remedy="name the models in one word, with commas: a.onnx,b.onnx")
    models = tuple(rest[0].split(","))
    if not all(models):
        raise _wrong(f"{rest[0]!r} has a comma too many", remedy="remove it")
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
class _Told:
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
        if not model.is_file():
            raise UsageError(
                "there is no such model",
                file=model.as_posix(),
                remedy="run this where the command line is run, or name its models by path",
                code=Code.NO_SUCH_PATH,
            )
    path = path or manifests.folder(models) / manifests.NAME
    manifests.refuse_files([path], force=force)
    manifest = "\n".join(_text(flags, models, path)) + "\n"
    manifests.check(manifest, path, _refusal)
    manifests.save({path: manifest})
    return path


def _text(flags: Flags, models: list[Path], path: Path) -> Iterator[str]:
    told = _grouped(_plugged(flags, path) if flags.plugin else _given(flags), flags.entries)
    keys, alias = manifests.model_names(models), manifests.alias(told.provider)
    yield f"# From: {TOOL} {_shown(flags.words)}"
    yield from (f"#   {_printable(reason)}" for reason in told.dropped)
    if flags.verbose:
        yield "#   -v: it is `epctx build -v`"
    yield from manifests.HEAD
    yield f"name: {manifests.manifest_name(models, path)}"
    yield ""
    yield from manifests.model_lines(models, path)
    yield ""
    yield "execution_providers:"
    yield from manifests.provider_lines(told.provider, told.options)
    if told.unknown:
        yield "    allow_unknown_options: true    # epctx knows nothing of this EP's options"
    yield ""
    yield "model_groups:"
    yield "  main:"
    yield f"    models: [{', '.join(keys)}]"
    yield f"    execution_providers: [{alias}]"
    yield from manifests.sharing_lines(keys, len(keys) > 1)
    yield from told.group


def _given(flags: Flags) -> _Told:
    """Take the EP of `-e` and its options, without options that a manifest does not need."""
    reasons = {key: _needless(key, value) for key, value in flags.options.items()}
    return _Told(
        provider=flags.provider,
        options={key: value for key, value in flags.options.items() if not reasons[key]},
        dropped=tuple(f"-i {key}: {reason}" for key, reason in reasons.items() if reason),
    )


def _needless(key: str, value: str) -> str:
    """Reason why a QNN option is left out; empty if the option is kept."""
    if key == "backend_path":
        if "htp" not in PureWindowsPath(value).name.lower():
            raise UsageError(
                f"{value!r} is no HTP library",
                where=f"{TOOL}: -i {key}",
                remedy="leave it away: contexts are compiled for the HTP, QNN's NPU",
            )
        return "the HTP library of the installed onnxruntime-qnn is taken"
    if key == "enable_htp_weight_sharing":
        return "`sharing_groups` shares; onnxruntime-qnn 2.7 does nothing with it"
    if key in ("vtcm_mb", "htp_arch") and value == "0":
        return "0 is none, which is the default"
    return ""


def _plugged(flags: Flags, path: Path) -> _Told:
    """Take the EP from the JSON file of `-p`. `-i` is ignored beside `-p`, as in the tool."""
    plugin = _read(flags)
    if not plugin.selected_ep_name:
        raise UsageError(
            "the plugin's EP has no name",
            file=f"{flags.plugin}",
            why="selected_ep_device_indices are places in a list that differs between hosts",
            remedy="give selected_ep_name in their place",
        )
    told = replace(_given(replace(flags, options=plugin.default_ep_options)), dropped=())
    told = replace(told, provider=plugin.selected_ep_name)
    ignored = tuple(f"-i {key}: {TOOL} passes it over beside -p" for key in flags.options)
    if providers.find(plugin.selected_ep_name) is not None:
        installed = f"ep_library_path: the installed library of {plugin.selected_ep_name} is taken"
        return replace(told, dropped=(installed, *ignored))
    library = manifests.relative(Path(plugin.ep_library_path), path)
    options = {"plugin.library": library, **plugin.default_ep_options}
    return replace(told, options=options, unknown=True, dropped=ignored)


def _read(flags: Flags) -> _Plugin:
    assert flags.plugin is not None
    file = flags.plugin.as_posix()
    remedy = "-p takes the JSON file that the tool takes"
    with UsageError.if_refused("cannot be read", file=file, remedy=remedy):
        large = flags.plugin.stat().st_size > _LARGEST
        content = b"" if large else flags.plugin.read_bytes()
    try:
        return msgspec.json.decode(content, type=_Plugin)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = f"it is larger than {_LARGEST:,} bytes" if large else str(error)
        raise UsageError("is no plugin's JSON file", file=file, why=why, remedy=remedy) from error


def _grouped(told: _Told, entries: Mapping[str, str]) -> _Told:
    """Add the session entries of `-C` as keys of the group."""
    ignored = {_PREFIX: "QNN 2.7 names its nodes itself"} if told.provider == _QNN else {}
    left = {key: value for key, value in entries.items() if key not in _OWN}
    lines = []
    prefix = left.pop(_PREFIX, "")
    if prefix and not ignored:
        lines.append(f"    node_name_prefix: {manifests.scalar(prefix)}")
    if file := left.pop(_INITIALIZERS, ""):
        lines.append("    # A file for each model: in one, the second would overwrite the first.")
        name = manifests.quoted(f"{{model}}_{file}")
        lines.append(f"    external_initializers: {{file: {name}, size_threshold: 0}}")
    if left.pop(_NO_FALLBACK, "0") == "1":
        lines.append(f"    partition: {{require_coverage: 1}}    # {_NO_FALLBACK}")
    if left:
        lines.append("    session_options:")
    for key, value in left.items():
        lines.append(f"      {manifests.scalar(key)}: {manifests.quoted(value)}")
    own = {**_OWN, **ignored}
    dropped = tuple(f"-C {key}: {reason}" for key, reason in own.items() if key in entries)
    return replace(told, group=tuple(lines), dropped=(*told.dropped, *dropped))


def _shown(words: tuple[str, ...]) -> str:
    """Join the words into one comment line."""
    quoted = [f'"{word}"' if re.search(r"[\s|]", word) else word for word in words]
    return _printable(" ".join(" ".join(quoted).split()))


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _refusal(violation: Violation) -> EpctxError:
    remedy = violation.remedy
    if violation.code == Code.SHARING:
        remedy = "name one model, or write a manifest of models that share nothing: `epctx init`"
    where = f"{TOOL}: {_flag(violation.path)}"
    return ManifestError(violation.what, where=where, remedy=remedy, code=violation.code)


def _flag(path: str) -> str:
    """Flag that produced a place in the manifest."""
    for flag, pattern in _KEYS:
        if found := pattern.fullmatch(path):
            return f"{flag} {found[1].strip('[]').strip(chr(34))}".rstrip()
    return path
