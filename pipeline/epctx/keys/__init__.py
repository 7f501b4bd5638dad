"""Keys: what an action's result depends on, as one digest (design section 9).

The key of an action is that of its own fields (`actions.action`). What models are run for still has
records: a recording comes with a compile, *calibrate* finds ranges, *verify* is of a session group
and of a folder beside them. `records` says field by field what is in those, `make` makes them from
a manifest, `changes` explains why two differ.
"""

from epctx.keys.changes import Change, between
from epctx.keys.records import (
    CalibrateRecord,
    FolderRecord,
    RecordingRecord,
    VerifyRecord,
    key,
)
from epctx.keys.toolchain import Toolchain

__all__ = [
    "CalibrateRecord",
    "Change",
    "FolderRecord",
    "RecordingRecord",
    "Toolchain",
    "VerifyRecord",
    "between",
    "key",
]
