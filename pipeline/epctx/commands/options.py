"""Annotations of `epctx.api` parameters, from which the command line builds its options.

Each parameter is declared once. The signature has its name, type and default, the docstring has its
meaning under `Args`, and an annotation has settings for the command line, and what a path leads to.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Final, Literal, get_args, get_type_hints

from msgspec import Struct
from msgspec.structs import replace

from epctx.arguments import Place
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.parsing.document import reader

_ENTRY: Final = re.compile(r"^ {4}(\w+): ", re.MULTILINE)
AnyPath = str | os.PathLike[str]


class Option(Struct, frozen=True, kw_only=True):
    """Command-line spelling of a parameter.

    Attributes:
        name: `--name`, if it differs from the parameter's name.
        short: one-letter form of the option.
        metavar: placeholder for the value in the help text.
        least: smallest allowed number.
        complete: function in `epctx.cli.completion` that completes values.
        variable: environment variable that can replace the option.
        unset: behaviour if neither is given, in words, for `epctx env`.
        parser: parser of the value: a duration (`90s`), age (`30d`), size (`10GB`), path or
            `oci://…`.
    """

    name: str | None = None
    short: str | None = None
    metavar: str | None = None
    least: int | None = None
    complete: str | None = None
    variable: str | None = None
    unset: str = "none"
    parser: Literal["duration", "age", "size", "place"] | None = None


class Existing(Place, frozen=True, kw_only=True):
    """Annotation of a path that must exist before the command starts.

    Attributes:
        otherwise: remedy if no similarly named file exists.
    """

    otherwise: str = "check the path"


class Written(Place, frozen=True, kw_only=True):
    """Annotation of a file or folder that the command writes; the folder around it must exist."""


def _refuse_manifest(path: Path) -> tuple[str, str] | None:
    """Message and remedy for a new manifest that is given as a model; None for another path."""
    remedy = f"name the new manifest with --out {path.as_posix()}"
    return ("is no model", remedy) if path.suffix in (".yaml", ".yml") else None


DOCUMENT: Final = Existing(kinds=("file", "pipe"))
FOLDER: Final = Existing(kinds=("folder",))
EITHER: Final = Existing(kinds=("file", "folder"))
OUTPUTS: Final = Place(kinds=("folder",))
MODELS: Final = Existing(kinds=EITHER.kinds, refuse=_refuse_manifest)
NEW_FOLDER: Final = Written(kinds=("folder",))
REREAD: Final = Existing(
    otherwise="check the path, or write a starter manifest with `epctx init`",
    refuse=reader.refuse_folder,
)
"""A manifest that is read more than once."""
STARTER: Final = replace(REREAD, kinds=DOCUMENT.kinds)
Manifest = Annotated[AnyPath | None, Option(metavar="[MANIFEST]"), STARTER]
NewManifest = Annotated[AnyPath | None, Option(name="out", short="o"), Written()]
Outputs = Annotated[AnyPath, Option(short="o", metavar="DIR"), OUTPUTS]
Groups = Annotated[Sequence[str], Option(metavar="GROUP[@TARGET]", complete="groups")]
Jobs = Annotated[int | None, Option(short="j", metavar="N", least=0)]
Pem = Annotated[AnyPath | None, Option(metavar="PEM"), DOCUMENT]
BuilderId = Annotated[str | None, Option(metavar="URI")]
Keys = Annotated[
    AnyPath | None,
    Option(metavar="FILE", variable="EPCTX_CACHE_TRUST", unset="nobody"),
    DOCUMENT,
]
CacheUrl = Annotated[str | None, Option(metavar="URL", variable="EPCTX_REMOTE_CACHE")]


def entries(function: Callable[..., object]) -> dict[str, str]:
    """Return the `Args` entries of a docstring by name, each on one line, without a full stop."""
    section = re.search(
        r"^Args:\n(.*?)(?=^\S|\Z)", inspect.getdoc(function) or "", re.MULTILINE | re.DOTALL
    )
    parts = _ENTRY.split(section[1] if section else "")[1:]
    return {
        name: " ".join(meaning.split()).rstrip(".")
        for name, meaning in zip(parts[::2], parts[1::2], strict=True)
    }


def variables(function: Callable[..., object]) -> dict[str, tuple[str, str]]:
    """Return default and meaning of the environment variables that can replace options."""
    meanings = entries(function)
    hints = get_type_hints(function, include_extras=True)
    return {
        mark.variable: (mark.unset, meanings.get(name, ""))
        for name, hint in hints.items()
        for mark in get_args(hint)
        if isinstance(mark, Option) and mark.variable is not None
    }


def located(manifest: AnyPath | None) -> Path:
    """Return the given manifest, else the one at the default place in a project.

    Raises:
        UsageError: no manifest was given, and none or several exist.
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
            "no manifest was named, and there is none: neither epctx.yaml nor in manifests/",
            remedy="name one, or write one: `epctx init MODEL.onnx`",
            code=Code.COMMAND_LINE,
        )
    names = [path.as_posix() for path in manifests]
    raise UsageError(
        "no manifest was named, and manifests/ has several",
        why=", ".join(names[:5]) + (", ..." if len(names) > 5 else ""),
        remedy=f"name one, such as {names[0]}",
        code=Code.COMMAND_LINE,
    )
