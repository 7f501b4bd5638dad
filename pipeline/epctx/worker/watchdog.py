"""What a worker process may take: watched from outside, since what runs in it is not ours.

An SDK may eat memory until the system ends whatever it likes, print without end, or leave processes
behind; onnx may infer without end what a few bytes ask for. The watch looks a few times a second;
what it cannot see between two looks is bounded by how fast a process can be.

All workers together may have the computer's memory, but for a tenth: where they have more, the one
that has most is ended. So none is as long as there is memory, and no other pays for what one takes.
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
"""Seconds between two looks."""
_KEPT: Final = 1 << 20
"""Bytes of a log that stay at its beginning and at its end when it is too long."""
_LEAST: Final = 3 * _KEPT
"""Bytes of a log that is never too long."""
_PIECES: Final = 64
"""Pieces of the end that are moved at a time: of who prints as fast as that some are lost."""
_PATIENCE: Final = 8
"""Times its processor time that native work may last: it shares the processor with others."""
_looking = threading.Lock()
_used: dict[Guard, int] = {}
"""What each worker had when it was last looked at, in bytes."""


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
        self._memory = limits.WORKER_MEMORY.value
        self._left_out = 0
        self._allowance: Allowance | None = None
        self._begun: tuple[float, float] | None = None

    @property
    def native(self) -> Work | None:
        """What native work the process is at, as far as it was announced."""
        return None if self._allowance is None else self._allowance.work

    def allow(self, allowance: Allowance | None) -> None:
        """Native work on a model begins, and may take so much; None: it has ended."""
        self._allowance = allowance
        self._begun = None

    def check(self) -> None:
        """Shorten the log where it has become too long.

        Raises:
            CompileError: the processes have more memory of their own than they may, or their native
                work takes too long.
        """
        self._shorten()
        used, seconds = self._taken()
        with _looking:
            _used[self] = used
            total, largest = sum(_used.values()), max(_used.values())
        most = _most()
        if self._allowance is not None:
            self._check_native(self._allowance, used, seconds)
        if used > self._memory or (total > most and used == largest):
            error = CompileError(
                f"the worker process was ended: it had {used >> 20} MiB of memory of its own, "
                f"and may have {self._memory >> 20}; all of them had {total >> 20}, and may have "
                f"{most >> 20}",
                remedy="build with fewer --jobs or on a larger machine; "
                f"{limits.WORKER_MEMORY.variable} (in bytes) sets another limit for one",
                code=Code.OUT_OF_MEMORY,
            )
            error.starved = True
            error.native = self.native
            raise error

    def close(self) -> None:
        """The processes have ended."""
        with _looking:
            _used.pop(self, None)

    def _check_native(self, allowance: Allowance, used: int, seconds: float) -> None:
        now = time.monotonic()
        self._begun = self._begun or (seconds, now)
        busy, lasted = seconds - self._begun[0], now - self._begun[1]
        if used > allowance.memory:
            what = f"{used >> 20} MiB of memory, and may have {allowance.memory >> 20}"
            limit = limits.NATIVE_MEMORY
        elif busy > allowance.seconds or lasted > _PATIENCE * allowance.seconds:
            what = f"{busy:.0f} s of processor time in {lasted:.0f} s, and may have "
            what += f"{allowance.seconds} in {_PATIENCE * allowance.seconds}"
            limit = limits.NATIVE_SECONDS
        else:
            return
        error = CompileError(
            f"the worker process was ended: {allowance.work} had {what}", remedy=limit.remedy
        )
        error.native = allowance.work
        raise error

    def _taken(self) -> tuple[int, float]:
        """Memory of the processes that is their own, in bytes; their processor time, in seconds."""
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
        """Keep the beginning and the end of a log that has become too long.

        The end is moved to where the middle was, until nothing is left to move: what is printed
        meanwhile is part of it.
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
    """What of it is no mapped file, in bytes. macOS does not tell: mapped files are counted too."""
    if sys.platform == "linux":
        return memory.rss - memory.shared
    if sys.platform == "win32":
        return memory.private
    return memory.rss


@functools.cache
def _most() -> int:
    """Nine tenths of the computer's or the container's memory: beyond it the system chooses."""
    total = int(psutil.virtual_memory().total)
    with contextlib.suppress(OSError, ValueError):  # "max", or no control groups of version 2
        total = min(total, int(_CGROUP.read_text(encoding="ascii")))
    return total * 9 // 10
