"""Limits of a worker process, watched from outside, since foreign code runs in it.

An SDK may take memory until the system kills arbitrary processes, print without end, or leave
processes behind; onnx's inference may never end on a few bytes. The watchdog checks a few times a
second.

All workers together may use nine tenths of the computer's memory. Beyond that, the watchdog ends
the largest worker, so that no other worker pays for it. A worker also has a limit of its own
(`limits.WORKER_MEMORY`), and announced native work has an allowance.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import threading
import time
from pathlib import Path
from typing import Final

import psutil

from epctx import limits
from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.graph.native import Allowance, Work

_CGROUP: Final = Path("/sys/fs/cgroup/memory.max")
INTERVAL: Final = 0.25
"""Seconds between two checks."""
_KEPT: Final = 1 << 20
"""Bytes to keep at the start and at the end of a log that is too long."""
_LEAST: Final = 3 * _KEPT
"""Minimum length of a log, in bytes, before it is shortened."""
_PIECES: Final = 64
"""Maximum number of pieces to move at once; a process that prints faster loses some output."""
_PATIENCE: Final = 8
"""Wall time that native work may take, as a multiple of the processor time allowed for it."""
_looking = threading.Lock()
_used: dict[Guard, int] = {}
"""Memory of each worker at its last check, in bytes."""


class Guard:
    """Watches one worker process and those that it starts.

    Args:
        pid: process id of the worker.
        log: file that it prints to, opened for appending.
    """

    def __init__(self, pid: int, log: Path) -> None:
        self._pid = pid
        self._log = log
        self._process: psutil.Process | None = None
        self._memory = limits.WORKER_MEMORY.value
        self._left_out = 0
        self._allowance: Allowance | None = None
        self._begun: tuple[float, float] | None = None

    @property
    def native(self) -> Work | None:
        """Announced native work of the process; None if there is none."""
        return None if self._allowance is None else self._allowance.work

    def allow(self, allowance: Allowance | None) -> None:
        """Note that native work with an allowance begins; None notes its end."""
        self._allowance = allowance
        self._begun = None

    def check(self) -> None:
        """Check the limits, and shorten a log that is too long.

        Raises:
            CompileError: the processes use too much private memory, or their native work takes too
                long.
        """
        self._shorten()
        used, seconds = self._taken()
        with _looking:
            _used[self] = used
            total, largest = sum(_used.values()), max(_used.values())
        limit = _most()
        if self._allowance is not None:
            self._check_native(self._allowance, used, seconds)
        if used > self._memory or (total > limit and used == largest):
            error = CompileError(
                f"the worker process was ended: it used {used >> 20} MiB of private memory, "
                f"and may use {self._memory >> 20}; all workers used {total >> 20}, and may use "
                f"{limit >> 20}",
                remedy="build with fewer --jobs or on a larger machine; "
                f"{limits.WORKER_MEMORY.variable} (in bytes) sets another limit for one worker",
                code=Code.OUT_OF_MEMORY,
            )
            error.starved = True
            error.native = self.native
            raise error

    def close(self) -> None:
        """Stop watching: the processes have ended."""
        with _looking:
            _used.pop(self, None)

    def _check_native(self, allowance: Allowance, used: int, seconds: float) -> None:
        now = time.monotonic()
        self._begun = self._begun or (seconds, now)
        busy, lasted = seconds - self._begun[0], now - self._begun[1]
        if used > allowance.memory:
            usage = f"{used >> 20} MiB of memory, and may use {allowance.memory >> 20}"
            limit = limits.NATIVE_MEMORY
        elif busy > allowance.seconds or lasted > _PATIENCE * allowance.seconds:
            usage = f"{busy:.0f} s of processor time in {lasted:.0f} s, and may use "
            usage += f"{allowance.seconds} in {_PATIENCE * allowance.seconds}"
            limit = limits.NATIVE_SECONDS
        else:
            return
        error = CompileError(
            f"the worker process was ended: {allowance.work} used {usage}", remedy=limit.remedy
        )
        error.native = allowance.work
        raise error

    def _taken(self) -> tuple[int, float]:
        """Return the private memory of the processes (bytes) and their processor time (seconds)."""
        used, seconds = 0, 0.0
        with contextlib.suppress(psutil.Error):
            self._process = self._process or psutil.Process(self._pid)
            for each in (self._process, *self._process.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    used += _own(each.memory_info())
                    times = each.cpu_times()
                    seconds += times.user + times.system
        return used, seconds

    def _shorten(self) -> None:
        """Keep only the start and the end of a log that is too long.

        The end is moved over the middle, piece by piece, with the output that arrives meanwhile.
        """
        with contextlib.suppress(OSError):
            if self._log.stat().st_size <= max(limits.WORKER_LOG.value, _LEAST):
                return
            with self._log.open("r+b", buffering=0) as stream:
                source, target = stream.seek(-_KEPT, os.SEEK_END), _KEPT
                self._left_out += source - target
                piece = f"\n[... {self._left_out} bytes left out ...]\n".encode()
                for _ in range(_PIECES):
                    if not piece:
                        break
                    stream.seek(target)
                    target += stream.write(piece)
                    stream.seek(source)
                    piece = stream.read(_KEPT)
                    source += len(piece)
                stream.truncate(target)


def _own(memory: psutil._ntuples.pmem) -> int:
    """Return memory in bytes, without mapped files; macOS counts these, too."""
    if sys.platform == "linux":
        return memory.rss - memory.shared
    if sys.platform == "win32":
        return memory.private
    return memory.rss


@functools.cache
def _most() -> int:
    """Return nine tenths of the memory of the computer, or of the container if it has less."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # "max", or no control groups of version 2
        total = min(total, int(_CGROUP.read_text(encoding="ascii")))
    return total * 9 // 10
