"""Keys: what an action's result depends on, as one digest (design section 9).

The key of an action is that of its own fields (`actions.action`). `records` says field by field
what is in those that are structs, and in the keys of calibration; `make` makes them from a
manifest, `changes` explains why two keys differ.
"""

from epctx.keys.records import CalibrateRecord, Change, between, key
from epctx.keys.toolchain import Toolchain

__all__ = [
    "CalibrateRecord",
    "Change",
    "Toolchain",
    "between",
    "key",
]
