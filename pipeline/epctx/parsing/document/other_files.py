"""What is given where a manifest belongs, and is something else that epctx or its users have."""

from __future__ import annotations

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.files.outputs import SUMS
from epctx.manifest import GENAI_CONFIG
from epctx.parsing.document.tree import Node

LOCK_SUFFIX: Final = ".lock.yaml"
_LISTED: Final = 5
"""Files of a folder that a remedy names."""


class _Kind(Struct, frozen=True, kw_only=True):
    """A kind of file.

    Attributes:
        keys: at its top, all of them.
        what: it is, with its article.
        remedy: what to do with it, given its path.
    """

    keys: Collection[str]
    what: str
    remedy: Callable[[Path], str]


def of_content(root: Node, path: Path) -> tuple[str, str] | None:
    """What a document is, if it is known and no manifest, and what to do.

    Args:
        root: the document.
        path: of its file, as the user named it.
    """
    for kind in _KINDS:
        if set(kind.keys) <= root.mapping.keys():
            return f"is {kind.what}, not a manifest", kind.remedy(path)
    return None


def of_folder(path: Path) -> tuple[str, str]:
    """What a folder is that is given as a manifest, and what to do."""
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
    found = [each for each in sorted(path.glob("*.yaml")) if not each.name.endswith(LOCK_SUFFIX)]
    named = ", ".join(each.as_posix() for each in found[:_LISTED])
    return "is a folder", f"name a file: {named}" if named else "name a YAML file"


def of_model(path: Path) -> tuple[str, str]:
    """What a file called as a model is, and what to do."""
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
    return f"{named}; {verify} holds outputs to the lock, `epctx diff` compares two"


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
