"""What a worker process may take: watched from outside, since what runs in it is not ours.

An SDK may eat memory until the system ends whatever it likes, print without end, or leave processes
behind. The watch looks a few times a second; what it cannot see between two looks is bounded by how
fast a process can be.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from epctx import limits
from epctx.errors import CompileError

if TYPE_CHECKING:
    import psutil

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
INTERVAL: Final = 0.25
"""Seconds between two looks."""
_KEPT: Final = 1 << 20
"""Bytes of a log that stay at its beginning and at its end when it is too long."""


class Guard:
    """Watches one worker process and those that it starts.

    Args:
        pid: of the worker.
        log: the file that it prints to, which was opened for appending.
    """

    def __init__(self, pid: int, log: Path) -> None:
        self._pid = pid
        self._log = log
        self._process: psutil.Process | None = None
        self._memory = min(limits.WORKER_MEMORY.value, _most())
        self._left_out = 0

    def check(self) -> None:
        """Shorten the log where it has become too long.

        Raises:
            CompileError: the processes have more memory of their own than they may.
        """
        self._shorten()
        used = self._used()
        if used > self._memory:
            error = CompileError(
                f"the worker process was ended: it had {used >> 20} MiB of memory of its own, "
                f"and may have {self._memory >> 20}",
                remedy="build with fewer --jobs or on a larger machine; "
                f"{limits.WORKER_MEMORY.variable} (in bytes) sets another limit",
            )
            error.starved = True
            raise error

    def _used(self) -> int:
        """Memory of the processes that is their own, in bytes."""
        import psutil

        if self._process is None:
            with contextlib.suppress(psutil.Error):
                self._process = psutil.Process(self._pid)
        if self._process is None:
            return 0
        used = 0
        with contextlib.suppress(psutil.Error):
            for each in (self._process, *self._process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used += _own(each.memory_info())
        return used

    def _shorten(self) -> None:
        """Keep the beginning and the end of a log that has become too long."""
        with contextlib.suppress(OSError):
            size = self._log.stat().st_size
            if size <= limits.WORKER_LOG.value:
                return
            with self._log.open("r+b") as stream:
                head = stream.read(_KEPT)
                stream.seek(size - _KEPT)
                tail = stream.read(_KEPT)
                self._left_out += size - len(head) - len(tail)
                stream.truncate(len(head))
                stream.seek(0, os.SEEK_END)
                stream.write(f"\n[... {self._left_out} bytes left out ...]\n".encode() + tail)


def _own(memory: psutil._ntuples.pmem) -> int:
    """What of it is no mapped file, in bytes. macOS does not tell: mapped files are counted too."""
    if sys.platform == "linux":
        return memory.rss - memory.shared
    if sys.platform == "win32":
        return memory.private
    return memory.rss


def _most() -> int:
    """Nine tenths of the computer's or the container's memory: beyond it the system chooses."""
    import psutil

    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # "max", or no control groups of version 2
        total = min(total, int(_CGROUP.read_text(encoding="ascii")))
    return total * 9 // 10
