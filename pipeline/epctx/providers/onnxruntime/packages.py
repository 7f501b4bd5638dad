"""Packages of EPs: Python distributions and their shared libraries.

Only `path_from` imports the package, since a plan asks for fingerprints and vendor packages are
slow to import.
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
"""Distributions that provide the import `onnxruntime`; only one may be installed."""
_FACTORIES = b"CreateEpFactories"
_LIBRARY_SUFFIXES = (".dll", ".pyd") if sys.platform == "win32" else (".so", ".dylib")


class Package(Struct, frozen=True, kw_only=True):
    """An installed package, with its distribution's version and its folder."""

    distribution: str
    version: str
    folder: Path


def find(distribution: str, module: str, *, install: str) -> Package:
    """Find the installed package that contains `module`.

    Args:
        distribution: the package's name for pip.
        module: name of the module to import.
        install: command that installs the package, for the error message.

    Raises:
        ProviderUnavailable: the package is not installed, or only a remnant of it is.
    """
    spec = importlib.util.find_spec(module)
    version = _version(distribution)
    folders = list(spec.submodule_search_locations or ()) if spec else []
    if spec is None or spec.origin is None or version is None or not folders:
        raise ProviderUnavailable(
            f"the package {distribution} is not installed",
            why="only remnants of it remain" if spec or version else None,
            remedy=f"run `{install}`",
            code=Code.NOT_INSTALLED,
        )
    return Package(distribution=distribution, version=version, folder=Path(folders[0]))


def onnxruntime() -> Package:
    """Return the installed ONNX Runtime, from whichever distribution.

    Raises:
        ProviderUnavailable: ONNX Runtime is not installed, or two distributions provide it.
    """
    owners = tuple(onnxruntimes())
    if len(owners) > 1:
        raise ProviderUnavailable(
            f"{' and '.join(owners)} both provide the package onnxruntime; the last one "
            "installed wins",
            remedy=f"run `pip uninstall {' '.join(owners)}`, then install one of them",
            code=Code.PACKAGES_CLASH,
        )
    distribution = owners[0] if owners else _ONNXRUNTIMES[0]
    return find(distribution, "onnxruntime", install=f"pip install {distribution}")


def onnxruntimes() -> dict[str, str]:
    """Return the installed distributions that provide the import `onnxruntime`, with their
    versions.
    """
    versions = {name: _version(name) for name in _ONNXRUNTIMES}
    return {name: version for name, version in versions.items() if version is not None}


def distributions(prefix: str) -> dict[str, str]:
    """Return the installed distributions whose names begin with a prefix, sorted, with their
    versions.
    """
    installed = importlib.metadata.distributions()
    return dict(sorted((d.name, d.version) for d in installed if d.name.startswith(prefix)))


def plugin_library(module: str) -> tuple[Path, dict[str, str]]:
    """Return the library of a plugin EP in an installed package, and the distribution's version.

    The library is recognized by its exported symbols; vendors announce it in no other way. The
    package is not imported, so naming a package in a manifest runs no code of the package.

    Raises:
        ProviderUnavailable: no installed distribution provides the package.
        ManifestError: the package contains no library of a plugin EP, or several.
    """
    owners = _owners(tuple(sys.path)).get(module, [])
    if not owners:
        raise ProviderUnavailable(
            f"plugin.package is {module!r}, which no installed distribution provides",
            remedy=f"install the EP's package, which may be called {module.replace('_', '-')}, and "
            "write the name under which Python imports it",
            code=Code.NOT_INSTALLED,
        )
    distribution = importlib.metadata.distribution(owners[0])
    folder = Path(str(distribution.locate_file(module)))
    package = Package(distribution=owners[0], version=distribution.version, folder=folder)
    plugins: dict[str, Path] = {}
    for path in libraries(package):  # libx.so and libx.so.1 are the same library: use the first
        if path.name.partition(".")[0] not in plugins and _makes_eps(path):
            plugins[path.name.partition(".")[0]] = path
    if len(plugins) != 1:
        raise ManifestError(
            f"plugin.package is {module!r}, which has {len(plugins) or 'no'} libraries of "
            "plugin EPs",
            why=", ".join(plugins) or f"none exports {_FACTORIES.decode()}",
            remedy="name the package of an EP, or the library itself as plugin.library",
        )
    return next(iter(plugins.values())), {module: distribution.version}


@functools.lru_cache(maxsize=8)
def _owners(path: tuple[str, ...]) -> Mapping[str, list[str]]:
    """Return the distributions that provide each package on `path`, the import path of this
    process.
    """
    return importlib.metadata.packages_distributions()


def _makes_eps(library: Path) -> bool:
    """Tell whether a library exports the symbols of a plugin EP. The library is not loaded."""
    with library.open("rb") as stream:
        if not os.fstat(stream.fileno()).st_size:
            return False
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(b"\0" + _FACTORIES + b"\0") >= 0


def libraries(package: Package) -> Iterator[Path]:
    """Return the shared libraries of a package and of its wheel's `.libs` folder, by folder."""
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
    """Tell whether a file name is one of a shared library: x.dll, libx.so, libx.so.1.2."""
    return any(suffix in _LIBRARY_SUFFIXES for suffix in path.suffixes) and path.is_file()


def path_from(module: str, function: str, *, remedy: str) -> Path:
    """Call a function of an EP's package that returns a path, since the layout differs by platform.

    Raises:
        ProviderUnavailable: the package cannot be imported, or has no such function.
    """
    try:
        return Path(getattr(importlib.import_module(module), function)())
    except (ImportError, AttributeError, OSError) as error:
        raise ProviderUnavailable(
            f"the package {module} returns no path from {function}()",
            why=f"{type(error).__name__}: {error}",
            remedy=remedy,
        ) from error


def labelled(owner: str, paths: Iterable[Path]) -> dict[str, Path]:
    """Label files for a fingerprint: `owner/file name`."""
    return {f"{owner}/{path.name}": path for path in paths}
