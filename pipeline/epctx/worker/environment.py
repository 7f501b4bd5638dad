"""The environment of worker processes: the same whoever builds, where, and when."""

from __future__ import annotations

import os
from collections.abc import Mapping

from epctx import limits

KEPT_VARIABLES = (
    "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "TMP", "TMPDIR",
    "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "COMSPEC", "APPDATA", "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "EPCTX_CACHE_DIR",
    "EPCTX_HIDE_DEVICES",
)  # fmt: skip
"""Of the environment, what a worker gets; all else could change what an SDK makes."""
SET_VARIABLES = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Variables that make a worker the same everywhere. OpenBLAS needs no threads: nothing uses it."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The scrubbed environment of a worker; `variables` are what is let through, or set, besides:
    `epctx reproduce` varies what no build ever does.
    """
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    kept |= {name: text for name, text in os.environ.items() if name.startswith(limits.PREFIX)}
    return kept | SET_VARIABLES | dict(variables)
