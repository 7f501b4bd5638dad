"""What is released, as somebody else may have written it: packages, golden files, archives and
attestations.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile import project
from tests.hostile.table import Room, add
from tests.kit.packaged import edited

PACKAGE, GOLDEN, ARCHIVE, ATTESTATION = "packages", "golden files", "archives", "attestations"
Spoil = Callable[[Path], object]
_SPARSE = 1 << 40
"""Bytes of files that take no room, and of which no row takes the sum."""


def _row(
    kind: str, name: str, where: str, spoil: Spoil, says: str, *options: str, **rest: Any
) -> None:
    """A row: `spoil` gets what is at `where` below `dist`; the release is verified."""

    def make(room: Room) -> None:
        spoil(project.release(room) / where)

    command = ("verify", f"dist/{where}", *options)
    add(kind, name, make, **{"code": 7, "says": says, "command": command, "posix": True, **rest})


# ---------------------------------------------------------------------------------- packages


def _package(name: str, spoil: Spoil, says: str, **rest: Any) -> None:
    """Whoever spoils a package writes its sums anew."""

    def make(folder: Path) -> None:
        spoil(folder)
        _sum(folder)

    _row(PACKAGE, name, "m.ortpackage", make, says, **rest)


def _sum(folder: Path) -> None:
    sums = {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.stat().st_size < _SPARSE
    }
    lines = [f"{digest}  {name}\n" for name, digest in sums.items() if name != "SHA256SUMS"]
    (folder / "SHA256SUMS").write_text("".join(lines), encoding="utf-8")


def _variant(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["components"]["a"]["variants"]["default"]
    return found


def _ort(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = _variant(document)["executor_info"]["ort"]
    return found


def _set_option(document: dict[str, Any], name: str, value: str) -> None:
    _ort(document)["session_options"] = {name: value}


def _rename(document: dict[str, Any], name: str) -> None:
    document["components"][name] = document["components"].pop("a")


def _text(content: bytes) -> Spoil:
    return lambda folder: (folder / "manifest.json").write_bytes(content)


_package("the manifest empty", _text(b""), "manifest.json")
_package("the manifest not UTF-8", _text(b'{"\xff": 1}'), "manifest.json")
_package(
    "the manifest nested 100,000 deep", _text(b'{"components":' + b"[" * 100_000), "manifest.json"
)
_package(
    "the manifest with a number of 10,000 digits",
    _text(b'{"schema_version":' + b"9" * 10_000 + b"}"),
    "manifest.json",
)
_package("of a newer version", edited(lambda d: d.update(schema_version="99.0")), "99.0")
_package(
    "a variant's folder outside",
    edited(lambda d: _variant(d).update(variant_directory="../../../outside")),
    "it has `..`",
)
_package(
    "a variant's folder that is absolute",
    edited(lambda d: _variant(d).update(variant_directory="/etc")),
    "/etc",
)
_package(
    "a model outside",
    edited(lambda d: _ort(d).update(model_file="../../../../a.onnx")),
    "../../../../a.onnx",
)
_package(
    "a model that is a FIFO", lambda f: _swap(f / "default/g/a_ctx.onnx", os.mkfifo), "a_ctx.onnx"
)
_package(
    "a model that is a link out of it",
    lambda f: _swap(f / "default/g/a_ctx.onnx", lambda p: p.symlink_to("/etc/hostname")),
    "is a link",
)
_package(
    "a model that is a link to /dev/zero",
    lambda f: _swap(f / "default/g/a_ctx.onnx", lambda p: p.symlink_to("/dev/zero")),
    "is a link",
)
for _what, _option, _value in (
    ("read a file outside", "session.model_external_initializers_file_folder_path", "../../.."),
    ("write a file", "session.optimized_model_filepath", "/tmp/owned.onnx"),
    ("move experts to files", "session.moe.offload.derived_cache_dir", "/tmp/owned"),
):
    _package(
        f"session options that {_what}",
        edited(partial(_set_option, name=_option, value=_value)),
        _option,
    )
_package("an asset that is not what its name says", lambda f: _asset(f), "content has the digest")
for _name in ("../x", "\n::error::owned", "x" * 100_000):
    _package(
        f"a component called {_name[:20]!r}, which is no path",
        edited(partial(_rename, name=_name)),
        "verified: 2 folders",
        code=0,
    )


def _swap(path: Path, make: Spoil) -> None:
    path.unlink()
    make(path)


def _asset(folder: Path) -> None:
    asset = folder / "shared_assets" / f"sha256-{'0' * 64}"
    asset.mkdir(parents=True)
    (asset / "x").write_text("x", encoding="utf-8")


# ------------------------------------------------------------------------------- golden files


def _golden(name: str, spoil: Spoil, says: str, **rest: Any) -> None:
    def make(group: Path) -> None:
        spoil(group / "golden")
        _sum(group / "golden")

    _row(GOLDEN, name, "m/default/g", make, says, "--golden", **rest)


def _record(content: bytes) -> Spoil:
    return lambda folder: (folder / "golden.json").write_bytes(content)


def _arrays(change: Callable[[zipfile.ZipFile, str, bytes], object]) -> Spoil:
    """Write the arrays anew, each as `change` does."""

    def spoil(folder: Path) -> None:
        path = folder / "a.npz"
        with zipfile.ZipFile(path) as found:
            held = {name: found.read(name) for name in found.namelist()}
        with zipfile.ZipFile(path, "w") as made:
            for name, content in held.items():
                change(made, name, content)

    return spoil


def _npy(shape: tuple[int, ...], kind: str = "<f4") -> bytes:
    stream = io.BytesIO()
    header = {"descr": kind, "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(stream, header)
    return stream.getvalue()


_golden("golden.json empty", _record(b""), "golden.json")
_golden("golden.json nested 100,000 deep", _record(b"[" * 100_000), "golden.json")
_golden("golden.json of 1 TiB", lambda f: os.truncate(f / "golden.json", _SPARSE), "golden.json")
_golden(
    "an array that says it has 2^60 elements",
    _arrays(lambda z, name, _: z.writestr(name, _npy((1 << 60,)))),
    "failed[E0704]: a_ctx.onnx: on golden inputs",
)
_golden(
    "an array of pickled objects",
    _arrays(lambda z, name, _: z.writestr(name, _npy((1,), "|O") + b"cos\nsystem\n(S'x'\ntR.")),
    "a.npz",
)
_golden(
    "arrays that are compressed",
    _arrays(lambda z, name, content: z.writestr(name, content, zipfile.ZIP_DEFLATED)),
    "is compressed",
)
_golden("arrays that are encrypted", lambda f: _encrypt(f / "a.npz"), "encrypted")
_golden("a list of arrays that are not there", _arrays(lambda *_: None), "There is no item named")
_golden(
    "values that are not what the model gives",
    _arrays(lambda z, name, content: z.writestr(name, content[:-4] + b"\0\0\x80?")),
    "against the golden outputs",
)


def _encrypt(path: Path) -> None:
    """Set the flag that says so in each entry."""
    data = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = data.find(mark)
        while start >= 0:
            data[start + place] |= 1
            start = data.find(mark, start + 4)
    path.write_bytes(data)


# ------------------------------------------------------------------- archives, attestations


def _released(kind: str, name: str, spoil: Spoil, says: str, **rest: Any) -> None:
    where = "m.tar" if kind == ARCHIVE else "m.intoto.json"
    _row(kind, name, where, spoil, says, "--lock", "m.lock.yaml", **rest)


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> Spoil:
    """An archive of other members, as a tar program would unpack them."""

    def spoil(path: Path) -> None:
        with tarfile.open(path, "w") as made:
            for info, content in members:
                info.size = len(content)
                made.addfile(info, io.BytesIO(content))

    return spoil


def _member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def _archives() -> Iterator[tuple[str, Spoil]]:
    yield "empty", lambda path: path.write_bytes(b"")
    yield "a file outside", _tar((_member("../../outside/x"), b"x"))
    yield "an absolute file", _tar((_member("/etc/x"), b"x"))
    yield "a link out", _tar((_member("m/default/g/a_ctx.onnx", tarfile.SYMTYPE, "/etc/x"), b""))
    yield "a device", _tar((_member("m/default/g/a_ctx.onnx", tarfile.CHRTYPE), b""))
    yield "compressed", lambda path: path.write_bytes(b"\x1f\x8b\x08" + path.read_bytes())
    yield "bytes after its end", lambda path: path.open("ab").write(b"x")
    yield "cut short", lambda path: os.truncate(path, 5000)
    yield "a sparse file of 1 TiB", lambda path: os.truncate(path, _SPARSE)
    yield "another owner of a file", lambda path: _patch(path, b"ustar", 32)


def _patch(path: Path, mark: bytes, further: int) -> None:
    data = bytearray(path.read_bytes())
    data[data.find(mark) + further] ^= 1
    path.write_bytes(data)


for _name, _spoil in _archives():
    _released(ARCHIVE, _name, _spoil, "failed[E0701]: m.tar: ")
_released(ARCHIVE, "a FIFO", lambda p: _swap(p, os.mkfifo), "is a pipe", code=2)


def _statement(change: Callable[[dict[str, Any]], object]) -> Spoil:
    def spoil(path: Path) -> None:
        document = json.loads(path.read_bytes())
        change(document)
        path.write_text(json.dumps(document), encoding="utf-8")

    return spoil


def _bytes(content: bytes) -> Spoil:
    return lambda path: path.write_bytes(content)


for _name, _spoil in {
    "empty": _bytes(b""),
    "not UTF-8": _bytes(b'{"\xff": 1}'),
    "nested 100,000 deep": _bytes(b"[" * 100_000 + b"]" * 100_000),
    "a number of 10,000 digits": _bytes(b'{"_type": ' + b"9" * 10_000 + b"}"),
    "no subjects": _statement(lambda d: d.update(subject=[])),
    "a subject that is a number": _statement(lambda d: d.update(subject=[7])),
    "a subject twice": _statement(lambda d: d["subject"].append(d["subject"][0])),
    "a subject without a name": _statement(lambda d: d["subject"][0].pop("name")),
    "a subject without a digest": _statement(lambda d: d["subject"][0].pop("digest")),
    "another type of predicate": _statement(lambda d: d.update(predicateType="x")),
    "another type of build": _statement(
        lambda d: d["predicate"]["buildDefinition"].update(buildType="https://x")
    ),
    "no lock": _statement(
        lambda d: d["predicate"]["buildDefinition"]["internalParameters"].pop("lock")
    ),
    "a lock that is a list": _statement(
        lambda d: d["predicate"]["buildDefinition"]["internalParameters"].update(lock=[1])
    ),
}.items():
    _released(ATTESTATION, _name, _spoil, "failed[E0701]: m.intoto.json: ")
_released(ATTESTATION, "a FIFO", lambda p: _swap(p, os.mkfifo), "is a pipe", code=2)
