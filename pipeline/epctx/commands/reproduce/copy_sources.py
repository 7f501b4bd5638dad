"""All that a manifest is built from, copied to another place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from epctx.engine import ranges
from epctx.errors import EpctxError, StorageError
from epctx.files import copying
from epctx.graph.serde import locations
from epctx.manifest import Manifest, ModelGroup, ModelSource

_OLD = 365 * 86_400.0
"""Seconds after 1970: what old files have as their time."""


def copy(manifest: Manifest, folder: Path, *, backwards: bool, aged: bool) -> Path:
    """Copy a manifest and its inputs into the new folder `folder`; return the manifest there.

    Where they lie relative to each other stays. What is missing, or is named by an absolute path,
    is left to the build. Blocks are shared with the originals where the file system does that.

    Args:
        manifest: parsed where it is.
        folder: does not exist.
        backwards: write the last one first: some file systems list them in that order.
        aged: they were changed last when Unix was young.

    Raises:
        StorageError: something cannot be read or written.
    """
    own = manifest.path.absolute()
    named = (path for t in manifest.targets for group in t.groups for path in _inputs(group))
    found = {path for path in _files(named) if path.drive == own.drive}
    paths = sorted({*found, own, *_files([ranges.place(own)])})
    root = Path(os.path.commonpath([path.parent for path in paths]))
    for path in reversed(paths) if backwards else paths:
        target = folder / path.relative_to(root)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            copying.copy(path, target)
            if aged:
                os.utime(target, (_OLD, _OLD))
        except OSError as error:
            raise StorageError(
                "cannot be copied, to be built elsewhere",
                file=str(path),
                why=str(error),
                remedy="make room, or name a folder on a larger disk with --out",
            ) from error
    return folder / own.relative_to(root)


def _inputs(group: ModelGroup) -> Iterator[Path]:
    for model in group.models:
        yield model.path
        yield from _data(model)
    for spec in group.execution_providers:
        yield from (Path(str(spec.options[name])) for name in spec.path_options)
    yield from group.verify.inputs.files
    if group.quantize is not None:
        yield from group.quantize.calibration.files


def _data(source: ModelSource) -> Iterator[Path]:
    """Files of external data that a model refers to; none where it cannot be read."""
    folder = source.external_data_dir or source.path.parent
    with contextlib.suppress(EpctxError):
        yield from (folder / name for name in locations.of(source.path))


def _files(paths: Iterable[Path]) -> Iterator[Path]:
    """Files, and those in folders, that are there; `..` taken away, links left as they are."""
    for path in paths:
        plain = Path(os.path.abspath(path))  # noqa: PTH100 - `resolve` would follow links
        if plain.is_dir():
            yield from (file for file in plain.rglob("*") if file.is_file())
        elif plain.is_file():
            yield plain
