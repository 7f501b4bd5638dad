"""Digests of the code of other installed packages, without importing them.

A version identifies the content of a wheel. It does not identify the content of a package that is
installed from a folder, or that a folder in PYTHONPATH replaces.
"""

from __future__ import annotations

import importlib.metadata
import re
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, all_suffixes
from importlib.metadata import Distribution, PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING

from epctx.files import digest
from epctx.files.digest import Digest

if TYPE_CHECKING:
    from epctx.cache.digests import FileDigests

_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")
_MODULES = {"protobuf": "google.protobuf"}
"""Modules whose name differs from their distribution."""


def code_of(module: str, distribution: Distribution | None, digests: FileDigests) -> Digest | None:
    """Return the digest of a module's code; None if there is no such module.

    The digest covers every file of the module's package (without a package: of its namespace
    folder, or the module alone); the other files of its distribution, such as a compiled module
    beside the package; the modules beside a package that is installed from a folder; and the
    versions of its requirements.

    Raises:
        OSError: a file cannot be read.
    """
    place = _place(module)
    if place is None:
        return None
    files = {*_brought(distribution), *_beside(place, distribution)}
    other_files = {
        file.name: str(digests.of(file)) for file in sorted(files) if not _below(file, place)
    }
    required = {} if distribution is None else _required(distribution)
    return digest.of_json([str(_tree(place, digests)), other_files, dict(sorted(required.items()))])


def sources_of(distribution: str, digests: FileDigests) -> Digest | None:
    """Return the digest of a library whose package is outside its distribution's folder; None if
    the package is inside.

    The package is outside if it is installed from a folder, or if another package of that name
    replaces it.

    Raises:
        OSError: a file cannot be read.
    """
    place = _place(_MODULES.get(distribution, distribution.replace("-", "_")))
    home = Path(str(importlib.metadata.distribution(distribution).locate_file("")))
    if place is None or _below(place.resolve(), home.resolve()):
        return None
    return _tree(place, digests)


def _tree(place: Path, digests: FileDigests) -> Digest:
    if place.is_file():
        return digests.of(place)
    files = [f for f in place.rglob("*") if f.is_file() and "__pycache__" not in f.parts]
    return digests.of_tree(place, files)


def _place(module: str) -> Path | None:
    """Return the folder of a module's package, or its file; None if it does not exist."""
    search, name, folder = None, "", None
    for part in module.split("."):
        name = f"{name}.{part}" if name else part
        spec = _spec(name, search)
        if spec is None:
            return None
        if spec.origin is not None:
            origin = Path(spec.origin)
            return origin.parent if spec.submodule_search_locations or folder else origin
        search = list(spec.submodule_search_locations or ())
        folder = name  # a namespace package, which may have parts in other packages
    return None


def _spec(name: str, search: list[str] | None) -> ModuleSpec | None:
    """Find a module like `importlib.util.find_spec`, but without importing its parents."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, search)
        if spec is not None:
            return spec
    return None


def _brought(distribution: Distribution | None) -> Iterator[Path]:
    """Yield the files of a distribution, without bytecode and the installer's own files."""
    for file in (distribution.files if distribution is not None else None) or ():
        generated = "__pycache__" in file.parts or ".." in file.parts
        if not generated and not file.parts[0].endswith((".dist-info", ".egg-info")):
            path = Path(str(file.locate()))
            if path.is_file():
                yield path


def _beside(place: Path, distribution: Distribution | None) -> Iterator[Path]:
    """Yield the modules beside a package that is installed from a folder: they may belong to it."""
    home = None if distribution is None else Path(str(distribution.locate_file(""))).resolve()
    if place.parent.resolve() != home:
        yield from (f for f in place.parent.iterdir() if f.name.endswith(tuple(all_suffixes())))


def _below(file: Path, place: Path) -> bool:
    return file == place or file.is_relative_to(place)


def _required(distribution: Distribution) -> dict[str, str]:
    """Return the versions of a distribution's requirements, recursively, without epctx."""
    versions: dict[str, str] = {"epctx": ""}
    remaining = [distribution]
    while remaining:
        for requirement in remaining.pop().requires or ():
            match = _REQUIREMENT.match(requirement)
            name = re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
            if not name or name in versions or "extra ==" in requirement:
                continue
            try:
                required = importlib.metadata.distribution(name)
            except PackageNotFoundError:
                continue  # for another system; if it is missing, its import will fail
            versions[name] = required.version
            remaining.append(required)
    return versions
