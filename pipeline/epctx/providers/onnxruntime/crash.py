"""How a process with native code ended, in words.

Vendor SDKs end the process where others raise (real-eps.md sections 5, 6, 9): a corrupt binary is a
SIGSEGV, a model with batch 0 a SIGFPE, a sharing group that nobody stopped a SIGABRT.
"""

from __future__ import annotations

import signal
from typing import Final

_LIKELY: Final = {
    "SIGABRT": "an assertion of the SDK, or an exception that nobody caught",
    "SIGFPE": "an integer division by zero: does a tensor have a dimension of 0?",
    "SIGILL": "an instruction that this CPU does not have",
    "SIGKILL": "by the system, which does so when memory runs out",
    "SIGSEGV": "an invalid memory access",
    "SIGBUS": "a mapped file that became shorter, or a full disk",
}
_WINDOWS: Final = {
    0xC0000005: "SIGSEGV",
    0xC000001D: "SIGILL",
    0xC0000094: "SIGFPE",
    0xC00000FD: "SIGSEGV",
    0xC0000374: "SIGABRT",
    0xC0000409: "SIGABRT",
    0xC0000017: "SIGKILL",
}
"""NTSTATUS to the signal that a POSIX system would have sent for it."""


def describe(code: int) -> str | None:
    """`ended by SIGFPE (an integer division by zero: ...)`; None: it ended by itself.

    Args:
        code: of subprocess: negative for a signal, an NTSTATUS on Windows.
    """
    name = _signal(code)
    if name is None:
        return None
    status = f" (status {code & 0xFFFFFFFF:#x})" if code & 0xFFFFFFFF in _WINDOWS else ""
    likely = _LIKELY.get(name)
    return f"ended by {name}{status}" + (f", {likely}" if likely else "")


def _signal(code: int) -> str | None:
    if code >= 0 or code & 0xFFFFFFFF in _WINDOWS:
        return _WINDOWS.get(code & 0xFFFFFFFF)
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"
