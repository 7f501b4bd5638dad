"""Packages of EPs: the Python distribution and the shared libraries in it.

Nothing here but `path_from` imports the package: a plan asks for fingerprints, and vendor packages
are slow to import.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import importlib.util
import mmap
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError, ProviderUnavailable

_ONNXRUNTIMES = (
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-directml",
    "onnxruntime-openvino",
    "onnxruntime-migraphx",
    "onnxruntime-rocm",
    "onnxruntime-trt-rtx",
    "onnxruntime-vitisai",
    "onnxruntime-cann",
)
"""Distributions that own the import `onnxruntime`, one at a time."""
_FACTORIES = b"CreateEpFactories"
_LIBRARY_SUFFIXES = (".dll", ".pyd") if sys.platform == "win32" else (".so", ".dylib")


class Package(Struct, frozen=True, kw_only=True):
    """An installed package: its distribution's version and its folder."""

    distribution: str
    version: str
    folder: Path


def find(distribution: str, module: str, *, install: str) -> Package:
    """The installed package that has `module`.

    Args:
        distribution: its name for pip.
        module: what is imported.
        install: the command that installs it, for the error.

    Raises:
        ProviderUnavailable: it is not installed, or a remnant of it is.
    """
    spec = importlib.util.find_spec(module)
    version = _version(distribution)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if spec is None or spec.origin is None or version is None or not folders:
        raise ProviderUnavailable(
            f"the package {distribution} is not installed",
            why="only remnants of it are there" if spec or version else None,
            remedy=f"run `{install}`",
            code=Code.NOT_INSTALLED,
        )
    return Package(distribution=distribution, version=version, folder=Path(folders[0]))


def onnxruntime() -> Package:
    """The installed ONNX Runtime, whichever distribution it came with.

    Raises:
        ProviderUnavailable: it is not installed, or two distributions own it.
    """
    owners = tuple(onnxruntimes())
    if len(owners) > 1:
        raise ProviderUnavailable(
            f"{' and '.join(owners)} both own the package onnxruntime; the last one installed wins",
            remedy=f"run `pip uninstall {' '.join(owners)}`, then install one of them",
            code=Code.PACKAGES_CLASH,
        )
    distribution = owners[0] if owners else _ONNXRUNTIMES[0]
    return find(distribution, "onnxruntime", install=f"pip install {distribution}")


def onnxruntimes() -> dict[str, str]:
    """The installed distributions of ONNX Runtime, which own one import, with their versions."""
    versions = {name: _version(name) for name in _ONNXRUNTIMES}
    return {name: version for name, version in versions.items() if version is not None}


def distributions(prefix: str) -> dict[str, str]:
    """The installed distributions whose names begin so, sorted, with their versions."""
    found = importlib.metadata.distributions()
    return dict(sorted((d.name, d.version) for d in found if d.name.startswith(prefix)))


def plugin_library(module: str) -> tuple[Path, dict[str, str]]:
    """The library of a plugin EP in an installed package, and the version of its distribution.

    It is known by what it exports, so nothing is imported: who names a package in a manifest has no
    module run by that, and vendors announce their libraries in no other way.

    Raises:
        ProviderUnavailable: no installed distribution brings the package.
        ManifestError: no library in it is a plugin EP's, or several are.
    """
    owners = _owners(tuple(sys.path)).get(module, [])
    if not owners:
        raise ProviderUnavailable(
            f"plugin.package is {module!r}, which no installed distribution brings",
            remedy=f"install the EP's package, which may be called {module.replace('_', '-')}, and "
            "name what of it is imported",
            code=Code.NOT_INSTALLED,
        )
    distribution = importlib.metadata.distribution(owners[0])
    folder = Path(str(distribution.locate_file(module)))
    package = Package(distribution=owners[0], version=distribution.version, folder=folder)
    found: dict[str, Path] = {}
    for path in libraries(package):  # libx.so, libx.so.1: the first is what the others are, too
        if path.name.partition(".")[0] not in found and _makes_eps(path):
            found[path.name.partition(".")[0]] = path
    if len(found) != 1:
        raise ManifestError(
            f"plugin.package is {module!r}, which has {len(found) or 'no'} libraries of plugin EPs",
            why=", ".join(found) or f"none exports {_FACTORIES.decode()}",
            remedy="name the package of an EP, or the library itself as plugin.library",
        )
    return next(iter(found.values())), {module: distribution.version}


@functools.lru_cache(maxsize=8)
def _owners(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """The distributions that bring each package on `path`, which is that of this process."""
    return importlib.metadata.packages_distributions()


def _makes_eps(library: Path) -> bool:
    """Tell whether a library exports what ONNX Runtime needs of a plugin EP; it is not loaded."""
    with library.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"\0" + _FACTORIES + b"\0") >= 0


def libraries(package: Package) -> Iterator[Path]:
    """The shared libraries of a package and those that its wheel brought along, by folder."""
    folders = [package.folder, package.folder.parent / f"{package.folder.name}.libs"]
    if (package.folder / "capi").is_dir():
        folders.append(package.folder / "capi")
    for folder in folders:
        if folder.is_dir():
            yield from (path for path in sorted(folder.iterdir()) if is_library(path))


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_library(path: Path) -> bool:
    """Tell whether a file's name is that of a shared library: x.dll, libx.so, libx.so.1.2."""
    return any(suffix in _LIBRARY_SUFFIXES for suffix in path.suffixes) and path.is_file()


def path_from(module: str, function: str, *, remedy: str) -> Path:
    """The path that a function of an EP's package returns; its layout differs by platform.

    Raises:
        ProviderUnavailable: the package cannot be imported, or has no such function.
    """
    try:
        return Path(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, OSError) as error:
        raise ProviderUnavailable(
            f"the package {module} gives no path by {function}",
            why=f"{type(error).__name__}: {error}",
            remedy=remedy,
        ) from error


def labelled(owner: str, paths: Iterable[Path]) -> dict[str, Path]:
    """Files as a fingerprint names them: `owner/file name`."""
    return {f"{owner}/{path.name}": path for path in paths}
