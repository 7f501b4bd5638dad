"""What a process of a build does, sampled: for `epctx build --profile`.

A thread looks every two milliseconds at the stacks of the others, and notes those that changed.
What native code does while it holds the interpreter's lock is seen when it lets go of it, and
counted to the function that called it. Nothing but the standard library is imported: it is to see
all other imports.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any, Final, TypeAlias

import psutil

VARIABLE: Final = "EPCTX_SAMPLES"
"""Of a worker's environment: where it notes its samples."""
INTERVAL: Final = 0.002
"""Seconds between two looks."""
Stack: TypeAlias = tuple[str, ...]
"""Functions, each as `path:name`, the outermost first."""


class _Sampler(threading.Thread):
    """Notes what the other threads of this process do, until it is ended.

    Its file has JSON lines: a list of the process's name and number, when it began, when the
    sampling did, and the main thread's number; then, for each change, when, which thread, and its
    stack. Times are in seconds since 1970.
    """

    def __init__(self, folder: Path, process: str) -> None:
        super().__init__(name="epctx-sampling", daemon=True)
        self.folder = folder
        self._over = threading.Event()
        self._last: Mapping[int, Stack] = {}
        self._stream = (folder / f"{os.getpid()}.jsonl").open("w", encoding="utf-8")
        now = time.time()
        self._note(process, os.getpid(), now - _age(), now, threading.main_thread().ident)

    def run(self) -> None:
        """Look, and wait, and look."""
        while not self._over.wait(INTERVAL):
            self.look()

    def look(self) -> None:
        """Note what other threads than this one do now."""
        now, frames = time.time(), sys._current_frames()
        frames.pop(self.ident or 0, None)
        self._see({thread: _stack(frame) for thread, frame in frames.items()}, now)

    def end(self) -> None:
        """Note nothing more."""
        self._over.set()
        self.join()
        self._see({}, time.time())
        self._stream.close()

    def _see(self, stacks: Mapping[int, Stack], now: float) -> None:
        for thread in self._last.keys() - stacks.keys():
            self._note(now, thread, ())
        for thread, stack in stacks.items():
            if self._last.get(thread) != stack:
                self._note(now, thread, stack)
        self._last = stacks
        self._stream.flush()

    def _note(self, *line: Any) -> None:
        self._stream.write(json.dumps(line) + "\n")


_own: _Sampler | None = None


def start(folder: str | None = None, process: str = "epctx") -> None:
    """Sample this process from now on.

    Args:
        folder: gets a file for each process of a build; None: a new one, that `folder` tells.
        process: what it is called.
    """
    global _own
    samples = folder or tempfile.mkdtemp(prefix="epctx-profile-")
    _own = _Sampler(Path(samples), process)
    _own.look()  # a module of native code may keep it waiting now
    _own.start()
    if sys.platform != "win32":  # of threads, a fork copies the one that forks
        os.register_at_fork(after_in_child=lambda: start(samples, process))


def folder() -> Path | None:
    """Where the files are; None: this process is not sampled."""
    return None if _own is None else _own.folder


def variables() -> dict[str, str]:
    """Of the environment of a process that this one starts: that it is to sample itself, too."""
    return {} if _own is None else {VARIABLE: str(_own.folder)}


def end() -> Path:
    """Sample this process no more; return where the files are."""
    global _own
    assert _own is not None
    _own.end()
    folder, _own = _own.folder, None
    return folder


def _stack(frame: FrameType) -> Stack:
    return tuple(reversed([f"{_path(f)}:{f.f_code.co_name}" for f in _frames(frame)]))


def _frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _path(frame: FrameType) -> str:
    """The file of a frame, from the folder that it was imported from."""
    path = frame.f_code.co_filename.replace("\\", "/")
    for root in ("/site-packages/", "/pipeline/", f"/python{sys.version_info[0]}."):
        path = path.rpartition(root)[2]
    return path


def _age() -> float:
    """Seconds since this process began, before the interpreter started."""
    if sys.platform == "linux":
        # To a hundredth of a second; of `psutil.Process.create_time` the seconds may be wrong.
        began = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()[19]
        up = float(Path("/proc/uptime").read_text(encoding="ascii").split()[0])
        return max(0.0, up - int(began) / os.sysconf("SC_CLK_TCK"))

    return max(0.0, time.time() - psutil.Process().create_time())
