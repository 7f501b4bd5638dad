"""Keys: what an action's result depends on, as one digest (design section 9).

Actions: *optimize*, *calibrate*, *quantize* (a model), *compile*, *verify* (a session group),
*compose* (a composition). A recording comes with a compile; a folder as a whole is verified beside
its session groups.
`records` says field by field what is in their keys, `making` makes the records from a manifest,
`changes` explains why two differ.
"""

from epctx.keys.changes import Change, between
from epctx.keys.records import (
    CalibrateRecord,
    CompileRecord,
    ComposeRecord,
    FolderRecord,
    KeyRecord,
    OptimizeRecord,
    QuantizeRecord,
    RecordingRecord,
    VerifyRecord,
    key,
)
from epctx.keys.toolchain import Toolchain

__all__ = [
    "CalibrateRecord",
    "Change",
    "CompileRecord",
    "ComposeRecord",
    "FolderRecord",
    "KeyRecord",
    "OptimizeRecord",
    "QuantizeRecord",
    "RecordingRecord",
    "Toolchain",
    "VerifyRecord",
    "between",
    "key",
]
