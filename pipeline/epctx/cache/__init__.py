"""The cache: objects by content, actions by key, as in Bazel (design section 9).

    <folder>/CACHEDIR.TAG           backups leave it out
    <folder>/v2/
        objects/ab/abcd…            content, named by its BLAKE3
        actions/ab/abcd…            what an action made, named by its key
        digests/ab/abcd…            digests of unchanged files, named by a folder above theirs
        groups/ab/abcd…             what a manifest's groups were built of last (engine.staleness)
        pace/ab/abcd…               how long a run of a model takes, to tell before the next one
        locks/abcd….lock            one OS lock an action
        users.db                    the lock that builds share and gc takes alone
        temporary/…                 a folder for each running process, on the file system of objects
        quarantine/…                what was found corrupt

Nothing in it is ever linked to, in or out. Nothing in it is believed: an object is hashed in the
pass that copies it out, a record carries its own digest. What is found corrupt is set aside, told,
and made again; so nothing is flushed to the disk either, and a power failure costs work at worst.
Whatever writes here raises StorageError where the cache cannot be written.
"""

from __future__ import annotations

from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.location import Location, locate
from epctx.cache.store import Cache

__all__ = ["Cache", "Location", "StoredAction", "StoredFile", "locate"]
