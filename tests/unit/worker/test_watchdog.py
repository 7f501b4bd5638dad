"""What ends a worker: its memory, that of all, and native work beyond its allowance."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from epctx.errors import CompileError
from epctx.graph.native import Allowance
from epctx.worker import watchdog
from epctx.worker.watchdog import Guard

HOLD = (
    "import sys; held = bytearray(b'1') * (int(sys.argv[1]) << 20); print(1, flush=True); input()"
)
SPIN = "print(1, flush=True)\nwhile True: pass"
WAIT = "print(1, flush=True); input()"
Start = Callable[..., Guard]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process, and returns its guard when it has done what it is for."""
    with ExitStack() as stack:

        def begin(program: str, *arguments: str) -> Guard:
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", program, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                )
            )
            stack.callback(process.kill)
            assert process.stdout is not None
            process.stdout.readline()
            guard = Guard(process.pid, tmp_path / "log")
            stack.callback(guard.close)
            return guard

        yield begin


def checked(guard: Guard, seconds: float) -> CompileError | None:
    """Check a process that computes until it has had so many seconds more of processor time.

    Returns: what the guard raised; None: nothing. However busy the machine is, a clock decides
    nothing.
    """
    process = psutil.Process(guard._pid)
    end = process.cpu_times().user + seconds
    while process.cpu_times().user < end:
        try:
            guard.check()
        except CompileError as error:
            return error
        time.sleep(0.05)
    return None


def allowance(memory: int = 1 << 40, seconds: int = 1000) -> Allowance:
    return Allowance(work="onnx's shape inference", memory=memory, seconds=seconds)


def test_native_work_has_the_memory_of_its_allowance(start: Start) -> None:
    guard = start(HOLD, "150")
    guard.allow(allowance(memory=1 << 30))
    guard.check()
    guard.allow(allowance(memory=100 << 20))
    with pytest.raises(CompileError, match=r"inference used 1.. MiB of memory") as error:
        guard.check()
    assert error.value.native == "onnx's shape inference" and not error.value.starved
    assert "raise EPCTX_LIMIT_NATIVE_MEMORY" in str(error.value.remedy)
    guard.allow(None)
    guard.check()
    assert guard.native is None


def test_native_work_has_the_processor_time_of_its_allowance(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_PATIENCE", 1000)
    guard = start(SPIN)
    guard.allow(allowance(seconds=1))
    error = checked(guard, 5)
    assert error is not None and "s of processor time" in str(error)
    assert error.native == "onnx's shape inference"
    assert "raise EPCTX_LIMIT_NATIVE_SECONDS" in str(error.remedy)


def test_native_work_that_waits_has_a_multiple_of_it(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_PATIENCE", 1000)
    guard = start(WAIT)
    guard.allow(allowance(seconds=1))
    guard.check()
    guard.check()
    monkeypatch.setattr(watchdog, "_PATIENCE", 0)
    with pytest.raises(CompileError, match="0 s of processor time in"):
        guard.check()


def test_time_counts_from_the_beginning_of_the_work(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_PATIENCE", 1000)
    guard = start(SPIN)
    for _ in range(3):
        guard.allow(allowance(seconds=1))
        assert checked(guard, 0.5) is None


def test_one_worker_has_the_limit_of_one(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_WORKER_MEMORY", str(100 << 20))
    with pytest.raises(CompileError, match="may use 100; all workers") as error:
        start(HOLD, "150").check()
    assert error.value.starved and error.value.native is None


def test_all_workers_share_the_memory_and_the_largest_pays(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "_most", lambda: 300 << 20)
    large, small = start(HOLD, "200"), start(HOLD, "150")
    large.check()
    small.check()  # it has not the most
    with pytest.raises(CompileError, match=r"all workers used 3.., and may use 300"):
        large.check()
    small.close()
    large.check()  # what has ended has nothing


class PrintedTo(io.FileIO):
    """A log that somebody prints to each time that a piece of it was read, thrice in all."""

    printed = 0

    def read(self, size: int | None = -1, /) -> bytes:
        found = super().read(size)
        if self.printed < 3:
            self.printed += 1
            with io.FileIO(self.name, "a") as stream:
                stream.write(b"meanwhile %d\n" % self.printed)
        return found


def test_what_is_printed_while_a_log_is_shortened_is_its_end(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_WORKER_LOG", str(4 << 20))
    lines = b"".join(b"line %d\n" % number for number in range(500_000))
    log = tmp_path / "log"
    log.write_bytes(lines)
    guard = start(WAIT)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda path, *mode, **more: PrintedTo(path, "r+b"))
        guard.check()
    kept = log.read_bytes()
    begin, note, end = re.split(rb"(\n\[\.\.\. \d+ bytes left out \.\.\.\]\n)", kept)
    assert lines.startswith(begin) and len(begin) == 1 << 20
    assert end == lines[-(1 << 20) :] + b"meanwhile 1\nmeanwhile 2\nmeanwhile 3\n"
    assert b" %d " % (len(lines) - (2 << 20)) in note
