"""Keys: what an action's result depends on, as one digest (design section 9).

Three actions: *optimize* (a model), *compile* and *verify* (a session group). `records` says field
by field what is in their keys, `making` makes the records from a manifest, `changes` explains why
two differ.
"""

from epctx.keys.changes import Change, between
from epctx.keys.records import (
    CompileRecord,
    KeyRecord,
    OptimizeRecord,
    VerifyRecord,
    key,
)
from epctx.keys.toolchain import Toolchain

__all__ = [
    "Change",
    "CompileRecord",
    "KeyRecord",
    "OptimizeRecord",
    "Toolchain",
    "VerifyRecord",
    "between",
    "key",
]
