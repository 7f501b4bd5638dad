"""A package as it follows from a lock: every file of it, from manifest.json to SHA256SUMS.

What is written comes from here, and what is verified is held to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from epctx.commands.package import contents, describing, form, variants
from epctx.commands.package.form import MANIFEST, Package
from epctx.commands.package.variants import BuiltGroup
from epctx.error_codes import Code
from epctx.errors import LockError
from epctx.files import items as items_
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.files.outputs import SUMS
from epctx.lockfile.types import Lock, LockedFile, LockedPackage


class Derived(Struct, frozen=True, kw_only=True):
    """A package.

    Attributes:
        groups: the variants' groups, in order.
        package: what manifest.json says.
        items: every file, by its path in the package, with `/`.
        saved: bytes that would be stored again if nothing were shared.
    """

    groups: Sequence[BuiltGroup]
    package: Package
    items: Mapping[str, Item]
    saved: int


def settings(lock: Lock, *, where: str) -> LockedPackage:
    """What a lock says of the package.

    Raises:
        LockError: nothing.
    """
    if lock.package is None:
        raise LockError(
            "says nothing of a package",
            file=where,
            why="an older epctx wrote it, or nothing is packaged",
            remedy="write it anew with `epctx build`; `package.groups` names what is packaged",
            code=Code.LOCK_DIFFERS,
        )
    return lock.package


def needed(lock: Lock, package: LockedPackage) -> Iterator[tuple[str, LockedFile]]:
    """Every file that goes into the package: what it is called in messages, and its content."""
    for variant in package.variants:
        held = {**lock.groups[variant.group].outputs, **variant.files}
        yield from ((f"{variant.group}/{name}", file) for name, file in sorted(held.items()))
    for asset, files in sorted(package.assets.items()):
        yield from ((f"{asset}/{name}", file) for name, file in sorted(files.items()))


def derive(lock: Lock, package: LockedPackage, items: Mapping[Digest, Item]) -> Derived:
    """The package of a lock.

    Args:
        package: what the lock says of it.
        items: files by SHA-256, all of `needed` among them.

    Raises:
        ModelError: a model cannot be read.
    """
    groups = [variants.of_lock(lock, package, each, items) for each in package.variants]
    assets = {
        name: {path: items[Digest("sha256", file.sha256)] for path, file in files.items()}
        for name, files in package.assets.items()
    }
    apart = package.component is not None
    arranged = contents.arrange(groups, assets.values(), apart=apart)
    hashed = {name: items_.digest_of(files) for name, files in assets.items()}
    described = describing.describe(lock, package, groups, arranged, hashed)
    held = {**arranged.items, MANIFEST: items_.made(form.encode(described))}
    lines = (f"{held[path].sha256.hex}  {path}\n" for path in sorted(held))
    sums = items_.made("".join(lines).encode())
    return Derived(
        groups=groups, package=described, items={**held, SUMS: sums}, saved=arranged.saved
    )
