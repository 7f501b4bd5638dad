"""A shared cache, made by somebody who means no good: whoever can write to a store can do that.

Whatever is done to it, a build makes the bytes that a build without it makes; what it says of it is
a line, and no credential is in it.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from epctx.cache import shared as looking_after
from epctx.cache.remote import signing
from epctx.cache.remote.signing import SigningKey
from epctx.cache.store import open_cache
from epctx.signing import dsse
from tests.hostile import project
from tests.hostile.caches import same
from tests.hostile.table import BUILD, Room, add
from tests.kit import stores

SHARED = "the shared cache"
SECRET = "hunter2-secret"
Spoil = Callable[[Path, SigningKey], object]


def row(
    name: str,
    spoil: Spoil,
    says: str = "verified",
    *,
    trusted: bool = True,
    environment: dict[str, str] | None = None,
    **rest: Any,
) -> None:
    """A row: a shared cache that somebody else's build has filled is spoilt; `spoil` gets its
    folder, and the key that was used.
    """

    def make(room: Room) -> None:
        key = _filled(room)
        spoil(room.outside.parent / "store", key)
        public = (room.folder.parent / "ci-1.pem.pub").read_text(encoding="utf-8")
        room.environment.update(
            EPCTX_REMOTE_CACHE=(room.folder.parent / "store").as_uri(),
            EPCTX_CACHE_TRUST=public if trusted else "",
        )
        room.environment.update(environment or {})

    options: dict[str, Any] = {"code": 0, **rest}
    if options["code"] == 0 and "command" not in rest:
        options["after"] = _same_and_silent
    add(SHARED, name, make, says=says, **options)


def _filled(room: Room) -> SigningKey:
    """A store beside the project with what a build of it pushed, and the key that signed it."""
    folder = room.folder.parent
    private = folder / "ci-1.pem"
    signing.keygen(private, "ci-1")
    project.fill_cache(room)
    told = {
        "EPCTX_CACHE_DIR": str(room.cache),
        "EPCTX_REMOTE_CACHE": (folder / "store").as_uri(),
        "EPCTX_CACHE_SIGNING_KEY": str(private),
    }
    with stores.installed():
        cache = open_cache(print, environment=told)
        assert cache.remote is not None
        assert looking_after.push(cache, cache.remote, None).actions > 0
        cache.close()
    shutil.rmtree(room.cache)
    return SigningKey.parse(private.read_bytes(), "test")


def _same_and_silent(room: Room) -> None:
    """What was published is right, and no secret is in anything that is left."""
    same(room)
    for folder in (room.folder, room.cache):
        for path in folder.rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def all_of(store: Path, kind: str) -> list[Path]:
    return sorted((store / "v1" / kind).iterdir())


def each(kind: str, change: Callable[[Path], object]) -> Spoil:
    """Do something to every blob of a kind."""

    def spoil(store: Path, key: SigningKey) -> None:
        for path in all_of(store, kind):
            path.chmod(0o644)
            change(path)

    return spoil


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def sealed(change: Callable[[dict[str, Any]], object]) -> Spoil:
    """Change every envelope."""

    def of_each(path: Path) -> None:
        told = json.loads(path.read_bytes())
        change(told)
        path.write_bytes(json.dumps(told).encode())

    return each("actions", of_each)


def resigned(change: Callable[[dict[str, Any]], object], kind: str = "compile") -> Spoil:
    """Change what each action of a kind tells, and sign it anew with the trusted key: as somebody
    would who has got hold of it.
    """

    def spoil(store: Path, key: SigningKey) -> None:
        for path in all_of(store, "actions"):
            told = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
            if told["kind"] == kind:
                change(told)
                path.write_bytes(_sealed_again(told, key))

    return spoil


def _sealed_again(told: dict[str, Any], key: SigningKey) -> bytes:
    content = json.dumps(told, separators=(",", ":")).encode()
    signature = key._key.sign(dsse.pae(signing.TYPE, content))
    signed = {"keyid": key.name, "sig": base64.b64encode(signature).decode()}
    payload = base64.b64encode(content).decode()
    return json.dumps(
        {"payload": payload, "payloadType": signing.TYPE, "signatures": [signed]}
    ).encode()


def named(name: str) -> Callable[[dict[str, Any]], object]:
    """An output of another name, in both places that tell of it."""

    def change(told: dict[str, Any]) -> None:
        told["files"][0]["name"] = name
        told["result"]["output"]["files"][0]["name"] = name

    return change


def _swapped(store: Path, key: SigningKey) -> None:
    paths = all_of(store, "actions")
    contents = [path.read_bytes() for path in paths]
    for path, content in zip(paths, contents[1:] + contents[:1], strict=True):
        path.write_bytes(content)


def _signatures_swapped(store: Path, key: SigningKey) -> None:
    paths = all_of(store, "actions")
    envelopes = [json.loads(path.read_bytes()) for path in paths]
    for path, told, other in zip(paths, envelopes, envelopes[1:] + envelopes[:1], strict=True):
        path.write_bytes(json.dumps(told | {"signatures": other["signatures"]}).encode())


def _by_another(store: Path, key: SigningKey) -> None:
    """Each signed by a key that nobody trusts, under its own name or the trusted one's."""
    private = store.parent / "other.pem"
    signing.keygen(private, "other-1")
    other = SigningKey.parse(private.read_bytes(), "test")
    for path in all_of(store, "actions"):
        told = json.loads(base64.b64decode(json.loads(path.read_bytes())["payload"]))
        path.write_bytes(_sealed_again(told, other))


def _by_a_namesake(store: Path, key: SigningKey) -> None:
    _by_another(store, key)
    sealed(lambda told: told["signatures"][0].update(keyid="ci-1"))(store, key)


def _million(told: dict[str, Any]) -> None:
    file = told["files"][0]
    told["files"] = [file | {"name": f"f{number}"} for number in range(250_000)]


def _twice(told: dict[str, Any]) -> None:
    told["files"] *= 2


def _second(sig: str) -> Spoil:
    return sealed(lambda told: told["signatures"].append({"keyid": "ci-1", "sig": sig}))


def _older(told: dict[str, Any]) -> None:
    told["version"] = 0


row("let alone", lambda store, key: None)
row("empty", lambda store, key: shutil.rmtree(store))
NOBODY = "no key is trusted"
row("nobody is trusted", lambda store, key: None, NOBODY, trusted=False)
UNTRUSTED = "not signed by a trusted key"
FORGED = "the signature is not valid"
OBJECT = "its content does not match its digest"
NO_ACTION = "is not an action of version 1"
row("objects: a flipped byte in each", each("objects", _flip), OBJECT)
row("objects: each empty", each("objects", lambda path: path.write_bytes(b"")), "shared cache")
row("objects: each missing", each("objects", Path.unlink))
row(
    "objects: bytes appended",
    each("objects", lambda path: path.write_bytes(path.read_bytes() + b"x")),
    "shared cache",
)
row("actions: a flipped byte in each", each("actions", _flip), "taken as missing")
row("actions: each empty", each("actions", lambda path: path.write_bytes(b"")), NO_ACTION)
row("actions: each missing", each("actions", Path.unlink))
row(
    "actions: JSON nested 100,000 deep",
    each("actions", lambda p: p.write_bytes(b"[" * 100_000)),
    NO_ACTION,
)
row(
    "actions: each a sparse file of 1 TiB",
    each("actions", lambda path: os.truncate(path, 1 << 40)),
    "shared cache",
    posix=True,
)
row("actions: each in the place of another", _swapped, "is of another key")
row("actions: signed by somebody who is not trusted", _by_another, UNTRUSTED)
row("actions: signed by another key of the same name", _by_a_namesake, FORGED)
row("actions: without signatures", sealed(lambda told: told.update(signatures=[])), "no signatures")
row(
    "actions: with 10,000 signatures",
    sealed(lambda told: told.update(signatures=told["signatures"] * 10_000)),
    "taken as missing",
)
row("actions: a second signature that does not hold", _second("A" * 86 + "=="), FORGED)
row("actions: a second signature that is no base64", _second("é"), FORGED)
row(
    "actions: another type of payload",
    sealed(lambda told: told.update(payloadType="text/plain")),
    "another type",
)
row("actions: each with the signature of another", _signatures_swapped, FORGED)
row("actions: an older version of the form", resigned(_older), NO_ACTION)
row("actions: a field that nobody knows", resigned(lambda told: told.update(more=1)), NO_ACTION)
row(
    "actions: the record of another key",
    resigned(lambda told: told.update(record={"x": 1})),
    "is of another key",
)
row("actions: a million outputs", resigned(_million), "too many files", seconds=30.0)
row("actions: outputs of one name", resigned(_twice), "or one twice")
OUTSIDE = "outside its folder"
for _what, _name, _says in (
    ("`..`", "../../../../outside/planted", OUTSIDE),
    ("an absolute path", "/tmp/epctx-planted", OUTSIDE),
    ("a backslash", "..\\planted", OUTSIDE),
    ("a drive letter", "C:planted", OUTSIDE),
    ("a stream of a file", "a.bin:planted", OUTSIDE),
    ("NUL", "a\0b", OUTSIDE),
    ("nothing", "", OUTSIDE),
):
    row(f"actions: an output named with {_what}, by a trusted key", resigned(named(_name)), _says)
row(
    "actions: an output named otherwise in the result, by a trusted key",
    resigned(lambda told: told["result"]["output"]["files"][0].update(name="../planted")),
    "lists other files than it has",
)
row(
    "actions: an object that is a path, by a trusted key",
    resigned(lambda told: told["files"][0]["digest"].update(hex="../../outside/secret")),
    NO_ACTION,
)
row(
    "actions: outputs of a negative size, by a trusted key",
    resigned(lambda told: told["files"][0].update(size=-1)),
    "impossible size",
)
row(
    "actions: outputs of an exabyte, by a trusted key",
    resigned(lambda told: told["files"][0].update(size=1 << 60)),
    "impossible size",
)
row(
    "actions: a result of another form, by a trusted key",
    resigned(lambda told: told.update(result=[1, 2, 3])),
)
row(
    "actions: a source that is optimized to what is none, by a trusted key",
    resigned(lambda told: told.update(files=[]), "optimize"),
)
row(
    "a password in the URL",
    lambda store, key: None,
    "shared cache",
    code=2,
    environment={"EPCTX_REMOTE_CACHE": f"s3://user:{SECRET}@bucket/prefix"},
    command=BUILD,
)
row(
    "a signing key that is none",
    lambda store, key: None,
    "EPCTX_CACHE_SIGNING_KEY",
    code=2,
    environment={"EPCTX_CACHE_SIGNING_KEY": SECRET},
    command=BUILD,
)
row(
    "trust that is none",
    lambda store, key: None,
    "no public key",
    code=2,
    environment={"EPCTX_CACHE_TRUST": "ci-1:AAAA"},
    command=BUILD,
)
for _command in (
    ("ls", "--remote"),
    ("gc", "--remote", "--older-than", "0s", "--dry-run"),
    ("pull",),
):
    row(
        f"actions: each something else, `cache {' '.join(_command)}`",
        each("actions", lambda path: path.write_bytes(b"\x1b[2J" * 1000)),
        "",
        command=("cache", *_command),
        leaves=("../store/*",),
    )
