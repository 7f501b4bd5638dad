"""Keys, signed actions and caches with a shared one behind them, for tests."""

from __future__ import annotations

import itertools
from pathlib import Path

import msgspec

from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.location import Location
from epctx.cache.remote import signing
from epctx.cache.remote.signing import SIGNING_VARIABLE, TRUST_VARIABLE, Voucher
from epctx.cache.remote.tier import Tier
from epctx.cache.store import Cache
from epctx.files import digest
from epctx.files.digest import Digest
from tests.kit.stores import FolderStore

RECORD = msgspec.Raw(b'{"v":1}')
KEY = digest.of_json({"v": 1})
_NUMBERS = itertools.count()


def key_pair(folder: Path, name: str) -> tuple[Path, str]:
    """A new private key's file, and the line of its public one."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.pem"
    _, line = signing.keygen(path, name)
    return path, line


def voucher(private: Path | None, *trusted: str) -> Voucher:
    """One that signs with a key, if there is one, and trusts others."""
    signs = {} if private is None else {SIGNING_VARIABLE: str(private)}
    return Voucher(environment={**signs, TRUST_VARIABLE: " ".join(trusted)})


def stored(folder: Path, **contents: bytes) -> tuple[StoredFile, ...]:
    """Files of an action, written."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return tuple(
        StoredFile(name=name, size=len(content), digest=digest.of_bytes(content))
        for name, content in contents.items()
    )


def action(
    files: tuple[StoredFile, ...] = (), result: bytes = b'{"count":3}'
) -> StoredAction[msgspec.Raw]:
    """A compile of `KEY`."""
    return StoredAction(kind="compile", record=RECORD, result=msgspec.Raw(result), files=files)


def keyed(number: int, kind: str = "compile") -> tuple[Digest, msgspec.Raw]:
    """A key and its record."""
    return digest.of_json({"n": number}), msgspec.Raw(b'{"n":%d}' % number)


def machine(
    folder: Path, store: FolderStore, said: Voucher, told: list[str], *, signed: bool = False
) -> Cache:
    """A cache of its own, with a shared one behind it."""
    tier = Tier("test://", said, told.append, lambda url: store)
    place = Location(folder=folder / f"cache{next(_NUMBERS)}")
    return Cache(place, told.append, voucher=said, remote=tier, signed=signed)
