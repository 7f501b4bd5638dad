"""Read a manifest, and recognize files and folders of other kinds."""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import InvalidManifest, ManifestError, Violation
from epctx.files import digest
from epctx.files.entries import read_document
from epctx.files.outputs import SUMS
from epctx.manifest import GENAI_CONFIG
from epctx.parsing.document import build
from epctx.parsing.document.tree import Node

_VERSION: Final = re.compile(rb"""^["']?schema_version["']?\s*:""", re.MULTILINE)
_OWN: Final = re.compile(rb"""^["']?(model_groups|execution_providers)["']?\s*:""", re.MULTILINE)
_LOCK: Final = re.compile(rb"^lock_version\s*:", re.MULTILINE)
_MODELINE: Final = re.compile(
    rb"^#\s*yaml-language-server:\s*\$schema=\S*(epctx\S*|/schemas/)manifest(\.bundle)?\.schema\.json\s*$",
    re.MULTILINE,
)


def is_manifest(path: Path) -> bool:
    """Tell whether a file is, or is meant to be, a manifest of epctx; it may be invalid YAML.

    Files of other tools also have a `schema_version`. A manifest has it as a top-level key,
    together with a key of epctx (`model_groups`, `execution_providers`) or an editor line that
    names epctx's schema. Top-level keys are those at the beginning of a line.

    An unreadable file does not count as a manifest; `epctx validate` reports the reason.
    """
    try:
        data = read_document(path, limits.MANIFEST_BYTES.value).removeprefix(codecs.BOM_UTF8)
    except (OSError, ValueError):
        return False
    if not _VERSION.search(data) or _LOCK.search(data):
        return False
    return bool(_OWN.search(data) or _MODELINE.search(data))


LOCK_SUFFIX: Final = ".lock.yaml"
_LISTED: Final = 5
"""Number of files in a folder that a remedy names."""


class _Kind(Struct, frozen=True, kw_only=True):
    """A kind of file.

    Attributes:
        keys: top-level keys that it always has.
        what: description with an article.
        remedy: makes the remedy from the path.
    """

    keys: Collection[str]
    what: str
    remedy: Callable[[Path], str]


def refuse_content(root: Node, path: Path) -> tuple[str, str] | None:
    """Message and remedy for a known document that is not a manifest; None for others.

    Args:
        root: root of the document.
        path: path of its file, as the user gave it.
    """
    for kind in _KINDS:
        if set(kind.keys) <= root.mapping.keys():
            return f"is {kind.what}, not a manifest", kind.remedy(path)
    return None


def refuse_folder(path: Path) -> tuple[str, str] | None:
    """Message and remedy for a folder that is given as a manifest; None if it is no folder."""
    if not path.is_dir():
        return None
    shown = path.as_posix()
    check = f"`epctx verify {shown}` checks it; name the manifest that it was built from"
    if (path / "manifest.json").is_file():
        return "is a package, not a manifest", check
    if (path / SUMS).is_file():
        return "is the folder of a model group's outputs, not a manifest", check
    if any(path.glob("*.build.json")):
        what = "is a folder of outputs, not a manifest"
        return what, f"{check}; `epctx report {shown}` makes the page of its build"
    if (path / GENAI_CONFIG).is_file():
        return "is a folder of onnxruntime-genai", f"write a manifest: `epctx init {shown}`"
    manifests = [
        each for each in sorted(path.glob("*.yaml")) if not each.name.endswith(LOCK_SUFFIX)
    ]
    listed = ", ".join(each.as_posix() for each in manifests[:_LISTED])
    return "is a folder", f"name a file: {listed}" if listed else "name a YAML file"


def refuse_model(path: Path) -> tuple[str, str]:
    """Message and remedy for a model file that is given as a manifest."""
    shown = path.as_posix()
    if path.stem.endswith("_ctx"):
        remedy = (
            f"name the manifest that it was built from, or look into it: `epctx inspect {shown}`"
        )
        return "is a compiled model, not a manifest", remedy
    return "is a model, not a manifest", f"write a manifest for it: `epctx init {shown}`"


def _lock(path: Path) -> str:
    own = path.with_name(path.name.removesuffix(LOCK_SUFFIX) + ".yaml")
    named = f"name the manifest: {own.as_posix()}" if own.is_file() else "name its manifest"
    verify = f"`epctx verify DIR --lock {path.as_posix()}`"
    return f"{named}; {verify} checks outputs against the lock, `epctx diff` compares two"


def _report(path: Path) -> str:
    return f"name the manifest; `epctx report {path.as_posix()}` makes a page of the report"


def _package(path: Path) -> str:
    return f"name the manifest; `epctx verify {path.parent.as_posix()}` checks the package"


def _attestation(path: Path) -> str:
    return "name the manifest; `epctx verify FILE --lock LOCK` checks an attestation"


def _genai(path: Path) -> str:
    return f"write a manifest for its folder: `epctx init {path.parent.as_posix()}`"


_KINDS: Final = (
    _Kind(keys=("lock_version",), what="a lock", remedy=_lock),
    _Kind(keys=("epctx", "started", "groups"), what="a build report", remedy=_report),
    _Kind(
        keys=("package_name", "components"),
        what="the description of an ONNX Runtime model package",
        remedy=_package,
    ),
    _Kind(keys=("_type", "predicateType"), what="an attestation", remedy=_attestation),
    _Kind(keys=("model", "search"), what="a configuration of onnxruntime-genai", remedy=_genai),
)


class Document(Struct, frozen=True, kw_only=True):
    """Parsed YAML file.

    Attributes:
        file: path as the user gave it, with `/`.
        path: absolute path.
        sha256: SHA-256 of its bytes, in hex.
        violations: faults that JSON cannot express: duplicate keys, tags, infinite numbers.
        broken: nodes with such faults; their intended values are unknown.
    """

    file: str
    path: Path
    sha256: str
    root: Node
    violations: tuple[Violation, ...] = ()
    broken: frozenset[Node] = frozenset()


def read(path: Path) -> Document:
    """Read a manifest's file.

    Raises:
        ManifestError: the file cannot be read, or is a model.
        InvalidManifest: the file is too large, not UTF-8, or not a single YAML document.
    """
    try:
        data = read_document(path, limits.MANIFEST_BYTES.value, pipes=True)
    except FileNotFoundError:
        raise ManifestError(
            "does not exist",
            file=path.as_posix(),
            remedy="check the path, or write a starter manifest with `epctx init`",
            code=Code.MANIFEST_UNREADABLE,
        ) from None
    except (OSError, ValueError) as error:
        raise ManifestError(
            "the manifest cannot be read",
            file=path.as_posix(),
            why=error.strerror if isinstance(error, OSError) else str(error),
            remedy="name a YAML file that you may read",
            code=Code.MANIFEST_UNREADABLE,
        ) from None
    if path.suffix.lower() == ".onnx":
        what, remedy = refuse_model(path)
        raise ManifestError(
            what, file=path.as_posix(), remedy=remedy, code=Code.MANIFEST_UNREADABLE
        )
    # The pipe of `<(…)` is in no folder: its paths are relative to the current one.
    place = path if path.resolve().exists() else Path(path.name)
    return parse(data, file=path.as_posix(), path=place.absolute())


def parse(data: bytes, *, file: str, path: Path) -> Document:
    """Parse a manifest's bytes, named `file` in messages. Raises InvalidManifest as `read` does."""
    limit = limits.MANIFEST_BYTES
    if len(data) > limit.value:
        remedy = f"split the manifest; {limit.remedy}"
        raise _refusal(file, 0, 0, f"is larger than {limit}", remedy)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        column = error.start - data.rfind(b"\n", 0, error.start)
        if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            raise _refusal(file, 0, 0, "is not UTF-8, but UTF-16", "save it as UTF-8") from None
        if b"\0" in data:
            raise _refusal(file, 0, 0, "is not a text file", "name a YAML file") from None
        raise _refusal(file, line, column, "is not UTF-8", "save the file as UTF-8") from None
    tree = build.build(text, file=file)
    return Document(
        file=file,
        path=path,
        sha256=digest.of_bytes(data, "sha256").hex,
        root=tree.root,
        violations=tree.violations,
        broken=tree.broken,
    )


def _refusal(file: str, line: int, column: int, what: str, remedy: str) -> InvalidManifest:
    return InvalidManifest(
        [
            Violation(
                file=file,
                line=line,
                column=column,
                path="",
                what=what,
                remedy=remedy,
                code=Code.MANIFEST_UNREADABLE,
            )
        ]
    )
