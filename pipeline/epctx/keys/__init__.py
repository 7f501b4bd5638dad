"""Keys: digests of everything that an action's result depends on (design section 9).

The key of an action is the digest of its own fields (`actions.action`). `records` has the structs
that such fields hold, and the keys of calibration. It makes these structs from a manifest, and
explains by which fields two keys differ (`between`).
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
