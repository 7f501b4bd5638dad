"""A command line of ONNX Runtime's `ep_weight_sharing_ctx_gen`, in parts.

Its flags are those of onnxruntime 1.31 (test/ep_weight_sharing_ctx_gen/command_args_parser.cc):
`-e`, `-p`, `-i`, `-C`, `-v`, `-h`, and one list of models with commas.
"""

from __future__ import annotations

import getopt
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath, PureWindowsPath
from typing import Final

from epctx.error_codes import Code
from epctx.errors import UsageError

TOOL: Final = "ep_weight_sharing_ctx_gen"
_BEFORE: Final = "onnxruntime_qnn_ctx_gen"
"""Its name before."""
_FLAGS: Final = "e:p:i:C:vh"
_PROVIDERS: Final = {
    "qnn": "QNNExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "vitisai": "VitisAIExecutionProvider",
}


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What a command line of the tool says.

    Attributes:
        words: all of it, without the tool's own name.
        provider: ONNX Runtime's name of the EP that `-e` names.
        plugin: the JSON file that `-p` names; None: no plugin.
        options: `-i`, the last of each key as the tool has it.
        entries: `-C`.
        verbose: `-v`.
        models: in order, as they were typed.
    """

    words: tuple[str, ...]
    provider: str
    plugin: Path | None
    options: dict[str, str]
    entries: dict[str, str]
    verbose: bool
    models: tuple[str, ...]


def parse(line: str) -> Flags:
    """The parts of a command line, with the tool's name in front or without.

    Raises:
        UsageError: it is none that the tool takes, or one that only asks for help.
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
    """Words as a shell has them; a backslash is a letter, as Windows' paths want it."""
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
    path: PurePath = PureWindowsPath(word)  # knows / and \
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
