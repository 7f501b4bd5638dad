"""A package held to a lock: every byte follows from it, or is told.

The lock says what was built (of several kinds of host, on that one whose outputs are in the
package), what the manifest adds, and what is said of the EPs; so the package is
derived anew (`derived`), from the files in it that the lock knows by their SHA-256, and compared
file by file. What the package says of itself, SHA256SUMS too, is not believed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from epctx._version import __version__
from epctx.commands.package import derived
from epctx.errors import LockError, ModelError
from epctx.files.digest import Digest
from epctx.files.items import Item
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedPackage
from epctx.verification.findings import Finding

_finding: Final = partial(Finding, "integrity", "lock")
_CHANGED: Final = "do not ship it: package it again, or restore the file from where it was released"
_EXTRA: Final = "remove it, or package again: nothing else belongs into a package"


def check(
    root: Path,
    entries: Sequence[str],
    found: Mapping[str, Digest | str],
    lock: Lock,
    where: str,
) -> Iterator[Finding]:
    """Every file of a package against a lock.

    Args:
        root: the package.
        entries: everything in it, with `/`; an empty folder ends with one.
        found: the SHA-256 of every file, by its path in the package, with `/`; or why it cannot be
            read.
        lock: of the build that the package is of.
        where: the lock in messages.
    """
    try:
        package = derived.settings(lock, where=where)
    except LockError as error:
        yield _finding(".", "fail", f"cannot be held to it: {error.reason}", error.remedy)
        return
    items = {
        digest: Item(size=(root / name).lstat().st_size, sha256=digest, source=root / name)
        for name, digest in found.items()
        if isinstance(digest, Digest)
    }
    lock = max(hosts.views(lock), key=lambda each: _known(each, package, items))
    lacking = [
        name
        for name, file in derived.needed(lock, package)
        if Digest("sha256", file.sha256) not in items
    ]
    for name in lacking:
        what = f"is not what {where} says" if name in found else f"is missing, {where} has it"
        yield _finding(name, "fail", what, _CHANGED)
    if lacking:
        return
    try:
        expected = derived.derive(lock, package, items).items
    except ModelError as error:
        yield _finding(".", "fail", f"cannot be held to {where}: {error.reason}", _CHANGED)
        return
    for name in sorted({*expected, *entries}):
        if name not in expected:
            yield _finding(name, "fail", f"does not follow from {where}", _EXTRA)
        elif name not in entries:
            yield _finding(name, "fail", f"is missing, it follows from {where}", _CHANGED)
        elif found.get(name) != expected[name].sha256:
            yield _other(name, lock, where)
        else:
            yield _finding(name, "pass", f"follows from {where}")


def _known(lock: Lock, package: LockedPackage, items: Mapping[Digest, Item]) -> int:
    """How many of the files that a package needs by a lock are in it."""
    needed = derived.needed(lock, package)
    return sum(Digest("sha256", file.sha256) in items for _, file in needed)


def _other(name: str, lock: Lock, where: str) -> Finding:
    """A file that is another; a package of another epctx may say the same in another way."""
    message, maker = f"is not what follows from {where}", lock.toolchain.get("epctx", "")
    if maker == __version__:
        return _finding(name, "fail", message, _CHANGED)
    remedy = f"verify it with epctx {maker}; {_CHANGED}"
    return _finding(name, "fail", f"{message}, which is of epctx {maker}", remedy)
