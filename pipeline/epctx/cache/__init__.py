"""The cache: objects by content, actions by key, as in Bazel (design section 9).

    <folder>/CACHEDIR.TAG           backups leave it out
    <folder>/v2/
        objects/ab/abcd…            content, named by its BLAKE3
        actions/ab/abcd…            results of actions, named by key
        digests/ab/abcd…            digests of unchanged files, by folder
        groups/ab/abcd…             inputs of the last build of the groups (engine.staleness)
        pace/ab/abcd…               duration of a model's runs, for estimates
        locks/abcd….lock            one OS lock for each action
        users.db                    the lock that builds share and gc takes exclusively
        temporary/…                 a folder for each running process, on the file system of objects
        quarantine/…                files that were found corrupt

Files are copied into and out of the cache, never linked. No content is trusted: an object is
hashed in the pass that copies it out, and a record carries its own digest. A corrupt file is set
aside, reported and made again. So nothing needs to be flushed to the disk: a power failure only
costs repeated work. Functions that write here raise StorageError if the cache cannot be written.
"""

from __future__ import annotations

from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.location import Location, locate
from epctx.cache.store import Cache

__all__ = ["Cache", "Location", "StoredAction", "StoredFile", "locate"]
