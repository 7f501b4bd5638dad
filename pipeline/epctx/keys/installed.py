"""The code of installed packages that are not epctx's, found without importing any.

A version names what a wheel brought. It does not name what is installed from a folder, nor what
another folder of PYTHONPATH has in a package's place.
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
"""Modules that are not named as their distribution is."""


def code_of(module: str, distribution: Distribution | None, digests: FileDigests) -> Digest | None:
    """Digest of all that a module of others is made of; None: there is no such module.

    That is every file of the package that it is in, or, if it is in none, of its folder in a
    namespace, or the module; what else its distribution brought, as a compiled module beside it;
    of one that is installed from a folder, the modules beside it; the versions of what it requires.

    Raises:
        OSError: a file cannot be read.
    """
    place = _place(module)
    if place is None:
        return None
    files = {*_brought(distribution), *_beside(place, distribution)}
    others = {file.name: str(digests.of(file)) for file in sorted(files) if not _below(file, place)}
    required = {} if distribution is None else _required(distribution)
    return digest.of_json([str(_tree(place, digests)), others, dict(sorted(required.items()))])


def sources_of(distribution: str, digests: FileDigests) -> Digest | None:
    """Digest of a library's package that is not where its distribution is; None: it is there.

    It is elsewhere if it is installed from a folder, or another of that name comes before it.

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
    """The folder of the package that a module is in, or the file that it is."""
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
        folder = name  # a namespace: other packages may have a part of it
    return None


def _spec(name: str, search: list[str] | None) -> ModuleSpec | None:
    """As `importlib.util.find_spec`, which imports the packages above a module."""
    for finder in sys.meta_path:
        spec = finder.find_spec(name, search)
        if spec is not None:
            return spec
    return None


def _brought(distribution: Distribution | None) -> Iterator[Path]:
    """The files that a distribution's installer noted, but what Python or an installer made."""
    for file in (distribution.files if distribution is not None else None) or ():
        made = "__pycache__" in file.parts or ".." in file.parts
        if not made and not file.parts[0].endswith((".dist-info", ".egg-info")):
            path = Path(str(file.locate()))
            if path.is_file():
                yield path


def _beside(place: Path, distribution: Distribution | None) -> Iterator[Path]:
    """Modules beside a package that is installed from a folder: nobody noted which are its own."""
    home = None if distribution is None else Path(str(distribution.locate_file(""))).resolve()
    if place.parent.resolve() != home:
        yield from (f for f in place.parent.iterdir() if f.name.endswith(tuple(all_suffixes())))


def _below(file: Path, place: Path) -> bool:
    return file == place or file.is_relative_to(place)


def _required(distribution: Distribution) -> dict[str, str]:
    """The versions of what a distribution requires, and of what that does; epctx is in no list."""
    found: dict[str, str] = {"epctx": ""}
    left = [distribution]
    while left:
        for requirement in left.pop().requires or ():
            match = _REQUIREMENT.match(requirement)
            name = re.sub(r"[-_.]+", "-", match[0]).lower() if match else ""
            if not name or name in found or "extra ==" in requirement:
                continue
            try:
                required = importlib.metadata.distribution(name)
            except PackageNotFoundError:
                continue  # for another system, or missing: then its import tells
            found[name] = required.version
            left.append(required)
    return found
