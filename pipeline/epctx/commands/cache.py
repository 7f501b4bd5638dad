"""The verbs of `epctx cache`: look after the cache of built actions, and the shared one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from epctx.arguments import checked
from epctx.cache import maintenance, shared
from epctx.cache.locks import alone
from epctx.cache.maintenance import Checked, Collected, Info
from epctx.cache.remote import signing
from epctx.cache.remote.tier import Tier
from epctx.cache.shared import Listed, Moved, Removed
from epctx.cache.store import Cache, open_cache
from epctx.commands.options import AnyPath, Existing, Option, Written
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.lockfile import action_names, read

Locks = Annotated[Sequence[AnyPath], Option(metavar="LOCK"), Existing()]
Notify = Callable[[str], None]


def _ignore(words: str) -> None:
    pass


@checked
def cache_info(*, notify: Notify = _ignore) -> Info:
    """Show the location and the size of the cache."""
    return maintenance.info(_open(notify))


@checked
def cache_gc(
    locks: Locks = (),
    *,
    max_size: Annotated[int | None, Option(metavar="SIZE", parser="size")] = None,
    older_than: Annotated[float | None, Option(metavar="AGE", parser="age")] = None,
    dry_run: bool = False,
    remote: bool = False,
    notify: Notify = _ignore,
) -> Collected | Removed:
    """Remove entries of the cache that are not needed.

    With lock files and no limit, remove every entry that the lock files do not reach. With a limit,
    remove the entries that exceed it and that no lock file reaches. With neither, remove only
    leftovers and unreferenced files. Waits for running builds. In a shared cache, the age of an
    entry counts from its upload.

    Args:
        locks: keep all entries that these lock files reach.
        max_size: largest total size of the other entries, in bytes; 10GB or 500MiB on the command
            line.
        older_than: remove other entries that were not used for this long, in seconds; 30d or 12h on
            the command line.
        dry_run: only report what would be removed.
        remote: remove entries of the shared cache, EPCTX_REMOTE_CACHE.
        notify: receives a message when the command waits, and when the cache sets a file aside.

    Raises:
        UsageError: the cache is read-only, there is no shared cache, or a size limit was given for
            the shared cache.
        LockError: a lock cannot be read.
        StorageError: the cache cannot be changed.
    """
    age = 0.0 if locks and older_than is None and max_size is None else older_than
    keep = {key for path in locks for key in action_names(read(Path(path)))}
    cache = _open(notify)
    if remote:
        tier = _remote(cache)
        if max_size is not None:
            raise UsageError(
                "a shared cache cannot be limited by size: it does not record the last use",
                where="--max-size",
                remedy="use --older-than",
                code=Code.COMMAND_LINE,
            )
        return shared.collect(tier.store, keep=keep, max_age=age, dry_run=dry_run)
    if cache.location.readonly:
        raise UsageError(
            "the cache is read-only", remedy="unset EPCTX_CACHE_READONLY to collect garbage"
        )
    limits = maintenance.Limits(max_size=max_size, max_age=age)
    with alone(cache.location, lambda: notify("waiting for builds that use the cache")):
        return maintenance.collect(cache, keep=keep, limits=limits, dry_run=dry_run)


@checked
def cache_verify(*, notify: Notify = _ignore) -> Checked:
    """Read the whole cache, and set corrupt files aside."""
    return maintenance.check(_open(notify))


@checked
def cache_keygen(
    key: Annotated[AnyPath, Option(metavar="KEY.pem"), Written()],
    *,
    name: Annotated[str | None, Option(metavar="NAME")] = None,
) -> tuple[Path, str]:
    """Write a private key that signs cache entries, and its public key, KEY.pem.pub.

    Name the private key in EPCTX_CACHE_SIGNING_KEY where entries are built, and the public key in
    EPCTX_CACHE_TRUST where they are used.

    Args:
        key: file for the new private key.
        name: name of the key, with a number at the end, such as ci-1.

    Returns:
        The file of the public key, and its only line.

    Raises:
        UsageError: a file already exists, or `cryptography` is not installed.
    """
    return signing.keygen(Path(key), name)


@checked
def cache_push(locks: Locks = (), *, notify: Notify = _ignore) -> Moved:
    """Sign the entries of the cache, and upload them to the shared cache, EPCTX_REMOTE_CACHE.

    Args:
        locks: push only the entries that these lock files reach; all entries if omitted.
        notify: receives a message when the cache sets a file aside.

    Raises:
        UsageError: there is no shared cache, or no signing key.
        StorageError: the shared cache refuses an upload.
    """
    cache = _open(notify)
    remote = _remote(cache)
    cache.ready()
    if not cache.signs:
        raise UsageError(
            "nothing can be pushed without a signing key",
            remedy="name one in EPCTX_CACHE_SIGNING_KEY; `epctx cache keygen KEY.pem` writes one",
            code=Code.ENVIRONMENT,
        )
    return shared.push(cache, remote, _names(locks))


@checked
def cache_pull(locks: Locks = (), *, notify: Notify = _ignore) -> Moved:
    """Download entries of the shared cache, EPCTX_REMOTE_CACHE, and check each file.

    Args:
        locks: pull only the entries that these lock files reach; all entries if omitted.
        notify: receives a message when an entry is refused.

    Raises:
        UsageError: there is no shared cache, no signer is trusted, or the cache is read-only.
        StorageError: the shared cache cannot be read, or the disk cannot be written.
    """
    cache = _open(notify)
    remote = _remote(cache)
    if cache.location.readonly:
        raise UsageError("the cache is read-only", remedy="unset EPCTX_CACHE_READONLY to pull")
    if not cache.trusts:
        raise UsageError(
            "nothing can be pulled, because no signer is trusted",
            remedy="name the public keys of the trusted signers in EPCTX_CACHE_TRUST",
            code=Code.ENVIRONMENT,
        )
    return shared.pull(cache, remote, _names(locks))


@checked
def cache_ls(*, remote: bool = False, notify: Notify = _ignore) -> list[Listed]:
    """List the actions in the cache, and who signed them.

    Args:
        remote: list the shared cache, EPCTX_REMOTE_CACHE.
        notify: receives a message when the cache sets a file aside.
    """
    cache = _open(notify)
    return shared.ls_remote(_remote(cache).store) if remote else shared.ls(cache)


def _open(notify: Notify) -> Cache:
    return open_cache(lambda text: notify(f"cache: {text}"))


def _names(locks: Sequence[AnyPath]) -> set[str] | None:
    return {name for path in locks for name in action_names(read(Path(path)))} if locks else None


def _remote(cache: Cache) -> Tier:
    """Return the shared cache behind a cache. Raises UsageError if there is none."""
    if cache.remote is None:
        raise UsageError(
            "there is no shared cache",
            remedy="name it in EPCTX_REMOTE_CACHE, like s3://bucket/prefix or file:///mnt/share/x",
            code=Code.ENVIRONMENT,
        )
    return cache.remote
