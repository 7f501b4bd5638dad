"""Marks on the parameters of `epctx.api`, from which the command line makes arguments and options.

A parameter is declared once: its name, type and default in the signature, its meaning under `Args`
of the docstring, and in a mark what only the command line needs.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args, get_type_hints

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.parsing.document import reader

_ENTRY: Final = re.compile(r"^ {4}(\w+(?:, \w+)*): ", re.MULTILINE)
AnyPath = str | os.PathLike[str]


class Option(Struct, frozen=True, kw_only=True):
    """Spelling of a parameter on the command line.

    Attributes:
        name: `--name`, if it is not that of the parameter.
        short: a letter that may stand for it.
        metavar: stands for the value in help.
        least: smallest value of a number.
        complete: function of `epctx.cli.completion` that completes values.
        variable: of the environment, that takes the place of the option.
        unset: in words, what holds if neither is given; for `epctx env`.
        parser: of the text: a duration (`90s`), age (`30d`), size (`10GB`), or a path or `oci://…`.
    """

    name: str | None = None
    short: str | None = None
    metavar: str | None = None
    least: int | None = None
    complete: str | None = None
    variable: str | None = None
    unset: str = "none"
    parser: Literal["duration", "age", "size", "place"] | None = None


class Existing(Struct, frozen=True, kw_only=True):
    """Mark of a path that must exist before the command begins.

    Attributes:
        otherwise: remedy if no other file can have been meant.
    """

    otherwise: str = "check the path"


class Written(Struct, frozen=True):
    """Mark of a path to a file that the command writes: its folder must exist."""


STARTER: Final = Existing(otherwise="check the path, or write a starter manifest with `epctx init`")
Read = Annotated[AnyPath, Existing()]
Manifest = Annotated[AnyPath | None, Option(metavar="[MANIFEST]"), STARTER]
NewManifest = Annotated[AnyPath | None, Option(name="out", short="o"), Written()]
Outputs = Annotated[AnyPath, Option(short="o", metavar="DIR")]
Groups = Annotated[Sequence[str], Option(metavar="GROUP[@TARGET]", complete="groups")]
Jobs = Annotated[int | None, Option(short="j", metavar="N", least=0)]
Pem = Annotated[AnyPath | None, Option(metavar="PEM"), Existing()]
BuilderId = Annotated[str | None, Option(metavar="URI")]
Keys = Annotated[
    AnyPath | None,
    Option(metavar="FILE", variable="EPCTX_CACHE_TRUST", unset="nobody"),
    Existing(),
]
CacheUrl = Annotated[str | None, Option(metavar="URL", variable="EPCTX_REMOTE_CACHE")]


def entries(function: Callable[..., object]) -> dict[str, str]:
    """Return the entries under `Args` of a docstring, by name, in one line, without a full stop."""
    section = re.search(
        r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function) or "", re.MULTILINE | re.DOTALL
    )
    parts = _ENTRY.split(section[1] if section else "")[1:]
    return {
        name: " ".join(meaning.split()).rstrip(".")
        for names, meaning in zip(parts[::2], parts[1::2], strict=True)
        for name in names.split(", ")
    }


def variables(function: Callable[..., object]) -> dict[str, tuple[str, str]]:
    """Return the variables of the environment that stand for parameters: default and meaning."""
    meanings = entries(function)
    hints = get_type_hints(function, include_extras=True)
    return {
        mark.variable: (mark.unset, meanings[name])
        for name, hint in hints.items()
        for mark in get_args(hint)
        if isinstance(mark, Option) and mark.variable is not None
    }


def located(manifest: AnyPath | None) -> Path:
    """Return the named manifest, else the one in the usual place of a project.

    Raises:
        UsageError: none was named, and there is none, or there are several.
    """
    if manifest is not None:
        return Path(manifest)
    usual = Path("epctx.yaml")
    if usual.is_file():
        return usual
    paths = (path for pattern in ("*.yaml", "*.yml") for path in Path("manifests").glob(pattern))
    manifests = [path for path in sorted(paths) if reader.is_manifest(path)]
    if len(manifests) == 1:
        return manifests[0]
    if not manifests:
        raise UsageError(
            "no manifest is named, and there is no epctx.yaml here, nor one in manifests/",
            remedy="name one, or write one: `epctx init MODEL.onnx`",
            code=Code.COMMAND_LINE,
        )
    names = [path.as_posix() for path in manifests]
    raise UsageError(
        "no manifest is named, and manifests/ has several",
        why=", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
        remedy=f"name one, such as {names[0]}",
        code=Code.COMMAND_LINE,
    )
