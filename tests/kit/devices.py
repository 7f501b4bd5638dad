"""Whether this host has a device for an EP of ONNX Runtime, as `epctx doctor` finds it out."""

from __future__ import annotations

import functools
import subprocess
import sys

from epctx import codec
from epctx.commands.doctor.probe import ProviderDiagnosis


@functools.cache
def lacking(provider: str) -> str | None:
    """Why nothing can be compiled or run for an EP here, with its name; None: it can.

    The EP's library is loaded in a process of its own. An EP that is installed and broken is none
    that this host lacks: its tests are to fail.
    """
    command = [sys.executable, "-P", "-m", "epctx.commands.doctor.probe", provider]
    asked = subprocess.run(command, stdout=subprocess.PIPE, timeout=120, check=True)
    (found,) = codec.decode(asked.stdout, list[ProviderDiagnosis])
    if found.state not in ("no device", "not installed") or found.failure is None:
        return None
    return f"{provider}: {found.failure.what}"
