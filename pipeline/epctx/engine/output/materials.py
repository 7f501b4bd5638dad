"""What made the bytes of a release: sources, Python packages, the libraries of EPs.

Each with the digests that are known of it. Of an installed package that is `dirHash` of in-toto:
the SHA-256 of what `sha256sum` prints of the files that its wheel brought. The wheel itself is not
there any more, and a package that is installed from a folder has none.
"""

from __future__ import annotations

import functools
import importlib.metadata
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from msgspec import Struct, field

from epctx.errors import ModelError
from epctx.files import digest, hashing
from epctx.files.digest import Digest, HashingWriter
from epctx.lockfile.types import Lock, LockedSource

_CHUNK = 1 << 20
_OF_INSTALLERS = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
"""Files beside a package that its installer writes, not its wheel."""


class Material(Struct, frozen=True, kw_only=True):
    """Something that bytes were made of; `digests` in hex, by in-toto's names of algorithms."""

    name: str
    uri: str = ""
    digests: dict[str, str] = field(default_factory=dict)


def of_lock(lock: Lock, folder: Path) -> list[Material]:
    """All that the lock names, sources first.

    Args:
        folder: the manifest's.

    Raises:
        ModelError: a source is gone, or is no longer the one that was built from.
    """
    names = sorted(lock.sources)
    sources = hashing.of_each(lambda name: _source(folder, name, lock.sources[name]), names)
    packages = dict(_packages(lock, _is_installed))
    found = [_package(name, version) for name, version in sorted(packages.items())]
    libraries = {each.name: each for each in _libraries(lock)}
    return [*sources.values(), *found, *(libraries[name] for name in sorted(libraries))]


def completed(lock: Lock, listed: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The descriptors of what `of_lock` gives, with digests that no lock has from `listed`.

    Args:
        listed: descriptors of an attestation, by URI, or by name where they have none.
    """
    found = [
        _described(name, "", listed, "sha256", blake3=source.digest.partition(":")[2])
        for name, source in sorted(lock.sources.items())
    ]
    packages = dict(_packages(lock, lambda name, version: _uri(name, version) in listed))
    found += [
        _described(name, _uri(name, version), listed, "dirHash")
        for name, version in sorted(packages.items())
    ]
    libraries = {each.name: each for each in _libraries(lock)}
    return found + [{"name": n, "digest": libraries[n].digests} for n in sorted(libraries)]


def _described(
    name: str, uri: str, listed: Mapping[str, Any], algorithm: str, **digests: str
) -> dict[str, Any]:
    claimed = listed.get(uri or name, {}).get("digest", {})
    digests |= {algorithm: claimed[algorithm]} if algorithm in claimed else {}
    described = {"name": name, "uri": uri, "digest": digests}
    return {key: value for key, value in described.items() if value}


def _source(folder: Path, name: str, source: LockedSource) -> Material:
    """A source with its SHA-256, which nothing else needed, and its BLAKE3, which it is held to."""
    path = folder / name
    blake3 = source.digest.partition(":")[2]
    with (
        ModelError.if_refused(
            "cannot be read for the attestation",
            file=str(path),
            remedy="build again while nothing changes the sources",
        ),
        path.open("rb") as stream,
        Path(os.devnull).open("wb") as sink,
    ):
        writer = HashingWriter(sink)
        while chunk := stream.read(_CHUNK):
            writer.write(chunk)
    if writer.blake3.hex != blake3:
        raise ModelError(
            "was changed while it was built from",
            file=str(path),
            remedy="build again while nothing changes the sources",
        )
    return Material(name=name, digests={"blake3": blake3, "sha256": writer.sha256.hex})


def _packages(lock: Lock, is_package: Callable[[str, str], bool]) -> Iterator[tuple[str, str]]:
    """The distributions that the lock names, with their versions; an EP's only if they are ones."""
    for name, version in lock.toolchain.items():
        if "/" not in name:  # else it is a digest of epctx's own sources
            distribution, _, own = version.rpartition(" ")
            yield distribution or name, own
    for each in lock.execution_providers.values():
        yield from (item for item in each.toolchain.items() if is_package(*item))
        yield from _brought(each.code)
    for group in lock.groups.values():
        for text in group.passes_of_others.values():
            yield from _brought(text)


def _brought(text: str) -> Iterator[tuple[str, str]]:
    """`<package> <version> <digest>…`, as of an EP or a pass that another package brings."""
    words = [word for word in text.split() if not word.startswith("blake3:")]
    if len(words) == 2:
        yield words[0], words[1]


def _is_installed(name: str, version: str) -> bool:
    try:
        return importlib.metadata.version(name) == version
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return False  # something else that an EP's bytes depend on, like the version of a format


def _package(name: str, version: str) -> Material:
    found = _dir_hash(name) if _is_installed(name, version) else None
    digests = {} if found is None else {"dirHash": found.hex}
    return Material(name=name, uri=_uri(name, version), digests=digests)


def _uri(name: str, version: str) -> str:
    return f"pkg:pypi/{name}@{version}"


@functools.cache
def _dir_hash(name: str) -> Digest | None:
    distribution = importlib.metadata.distribution(name)
    origin = json.loads(distribution.read_text("direct_url.json") or "{}")
    if "dir_info" in origin:
        return None  # from a folder: what is installed tells where that is
    held = {
        file.as_posix(): Path(str(distribution.locate_file(file)))
        for file in distribution.files or ()
        if _is_of_the_wheel(file)
    }
    there = {name: path for name, path in held.items() if path.is_file()}
    if not there or len(there) < len(held):
        return None
    return digest.of_folder(
        hashing.of_each(lambda name: digest.of_file(there[name], "sha256"), there)
    )


def _is_of_the_wheel(file: PurePosixPath) -> bool:
    """Not what Python compiles, what an installer notes, or a script that names its Python."""
    return (
        "__pycache__" not in file.parts
        and ".." not in file.parts
        and not (file.name in _OF_INSTALLERS and file.parts[0].endswith(".dist-info"))
    )


def _libraries(lock: Lock) -> Iterator[Material]:
    """Shared libraries of EPs and of onnxruntime, and epctx's own code, as the lock has them."""
    for name, text in lock.toolchain.items():
        yield from _blake3(name, text)
    for ep, each in lock.execution_providers.items():
        yield from _blake3(f"{ep}/code", each.code.rpartition(" ")[2])
        for name, text in each.toolchain.items():
            yield from _blake3(name, text)


def _blake3(name: str, text: str) -> Iterator[Material]:
    algorithm, _, hexadecimal = text.partition(":")
    if algorithm == "blake3":
        yield Material(name=name, digests={"blake3": hexadecimal})
