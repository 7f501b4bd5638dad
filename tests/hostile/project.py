"""The small sound project that each row spoils in its own way."""

from __future__ import annotations

import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import onnx
import yaml

from epctx import api
from tests.hostile.table import Room
from tests.kit import projects
from tests.kit.inline import Inline

Change = Callable[[onnx.ModelProto], object]


@functools.cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="epctx-hostile-")


@functools.cache
def _template() -> Path:
    folder = Path(_kept().name) / "sources"
    projects.make(folder, {"g": ["a"]}, verify={"inputs": {"count": 1}})
    return folder


@functools.cache
def built() -> Path:
    """The project after a build; it is let alone."""
    with _made("built") as folder:
        report = api.build(folder / "m.yaml", out=folder / "dist")
    assert [group.state for group in report.groups] == ["built"]
    return folder


@functools.cache
def released() -> Path:
    """The project after a release: golden files, an archive, an attestation and a package."""
    with _made("released") as folder:
        manifest, out = folder / "m.yaml", folder / "dist"
        api.package(manifest, out=out)
        api.build(manifest, out=out, golden=True, archive=True, attest=True)
    return folder


@contextmanager
def _made(name: str) -> Iterator[Path]:
    """A copy of the project to build in this process, with the cache that all of them share."""
    kept = Path(_kept().name)
    folder = kept / name
    shutil.copytree(_template(), folder)
    with (
        mock.patch.dict(os.environ, {"EPCTX_CACHE_DIR": str(kept / "cache")}),
        mock.patch("epctx.worker.pool.Worker", Inline),
    ):
        yield folder


def release(room: Room) -> Path:
    """Put into the project what a release of it is; the folder `dist`.

    That is, beside what `publish` puts there, `m/default/g/golden`, `m.tar`, `m.intoto.json` and
    the package `m.ortpackage`.
    """
    shutil.copytree(released() / "dist", room.folder / "dist")
    shutil.copy(released() / "m.lock.yaml", room.folder)
    return room.folder / "dist"


def copy(folder: Path) -> None:
    """Write the project: `m.yaml`, group `g` of the model `a.onnx`, its weights in `a.data`."""
    shutil.copytree(_template(), folder)


def fill_cache(room: Room) -> None:
    """The cache as a build of the project left it; it was built elsewhere, nothing is in dist."""
    built()
    shutil.copytree(Path(_kept().name) / "cache", room.cache)


def publish(room: Room) -> Path:
    """Put into the project what a build of it publishes; the group's folder.

    That is `dist/m/default/g` with `a_ctx.onnx`, `a_reference.bin`, `SHA256SUMS`; the lock too, and
    the report.
    """
    shutil.copytree(built() / "dist", room.folder / "dist")
    shutil.copy(built() / "m.lock.yaml", room.folder)
    return room.folder / "dist" / "m" / "default" / "g"


def model(room: Room, change: Change) -> None:
    """Change the model, its weights left where they are."""
    path = room.folder / "a.onnx"
    proto = onnx.load(path, load_external_data=False)
    change(proto)
    path.write_bytes(proto.SerializeToString())


def replace_model(room: Room, proto: onnx.ModelProto | bytes) -> None:
    """Put another model, or any bytes, in its place."""
    data = proto if isinstance(proto, bytes) else proto.SerializeToString()
    (room.folder / "a.onnx").write_bytes(data)


def manifest(room: Room, change: Callable[[dict[str, object]], object]) -> None:
    """Change what the manifest says."""
    path = room.folder / "m.yaml"
    document = yaml.safe_load(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True), encoding="utf-8")
