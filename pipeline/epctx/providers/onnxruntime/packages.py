"""Where an EP comes from: its Python package and the shared libraries in it.

Nothing here but `path_from` imports the package: a plan asks for fingerprints, and vendor packages
are slow to import.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from epctx.errors import ProviderUnavailable

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
_LIBRARY_SUFFIXES = (".dll", ".pyd") if sys.platform == "win32" else (".so", ".dylib")


@dataclass(frozen=True, kw_only=True)
class Package:
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
        )
    distribution = owners[0] if owners else _ONNXRUNTIMES[0]
    return find(distribution, "onnxruntime", install=f"pip install {distribution}")


def onnxruntimes() -> dict[str, str]:
    """The installed distributions of ONNX Runtime, which own one import, with their versions."""
    versions = {name: _version(name) for name in _ONNXRUNTIMES}
    return {name: version for name, version in versions.items() if version is not None}


def version_of(module: str) -> str:
    """The version of the distribution that has `module`; "" if none is known."""
    owners = importlib.metadata.packages_distributions().get(module.partition(".")[0], [])
    return (_version(owners[0]) or "") if owners else ""


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
    """Whether a file's name is that of a shared library: x.dll, libx.so, libx.so.1.2."""
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
