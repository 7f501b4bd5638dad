"""Processes that run native code, and how they ended."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from epctx.errors import UsageError
from epctx.providers.onnxruntime import native_process
from epctx.providers.onnxruntime.native_process import NativeProcess

STARTS = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print(child.pid, flush=True)\n"
)
"""Starts a process that holds the pipes that it was given, and says its number."""
WAITS = "time.sleep(600)\n"


@pytest.fixture
def started() -> Iterator[list[int]]:
    """Numbers of processes; those that are still there are ended."""
    numbers: list[int] = []
    yield numbers
    for number in numbers:
        if psutil.pid_exists(number):
            psutil.Process(number).kill()


def start(code: str, started: list[int], *, apart: bool) -> NativeProcess:
    process = NativeProcess(
        [sys.executable, "-c", code],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        apart=apart,
    )
    assert process.stdout is not None
    started.append(int(process.stdout.readline()))
    return process


def lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_gone(number: int) -> bool:
    deadline = time.monotonic() + 300
    while lives(number) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not lives(number)


@pytest.mark.parametrize("apart", [False, True])
def test_an_end_is_the_end_of_all_that_it_started(started: list[int], apart: bool) -> None:
    with start(STARTS + WAITS, started, apart=apart) as process:
        assert lives(started[0])
        process.end()
        assert process.returncode not in (None, 0)
    assert is_gone(started[0])


def test_what_it_left_behind_is_ended_once(
    started: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(STARTS, started, apart=True) as process:
        assert process.wait(timeout=300) == 0
        assert lives(started[0])
        process.end_rest()
        assert is_gone(started[0])
        if sys.platform != "win32":
            monkeypatch.setattr(os, "killpg", lambda *_: pytest.fail("again"))
        process.end_rest()
        process.end()


@pytest.mark.needs("POSIX", "there it has a job of its own")
def test_the_group_of_who_starts_it_is_left_alone(started: list[int]) -> None:
    with start(STARTS, started, apart=False) as process:
        process.wait(timeout=300)
        process.end_rest()
        assert lives(started[0])


def test_a_command_is_run_to_its_end() -> None:
    code = "import sys; print(sys.stdin.read() or 'nothing'); print('no', file=sys.stderr); exit(3)"
    ended = native_process.run([sys.executable, "-c", code], timeout=300)
    assert (ended.returncode, ended.stdout.split(), ended.stderr.split()) == (
        3,
        [b"nothing"],
        [b"no"],
    )


def test_a_command_that_takes_too_long_is_gone_with_what_it_started(
    started: list[int], tmp_path: Path
) -> None:
    told = tmp_path / "number"
    code = f"{STARTS}open({str(told)!r}, 'w').write(str(child.pid))\n{WAITS}"
    with pytest.raises(subprocess.TimeoutExpired):
        native_process.run([sys.executable, "-c", code], timeout=5)
    started.append(int(told.read_text()))
    assert is_gone(started[0])


@pytest.mark.parametrize("tells", [True, False], ids=["told by the system", "looked at"])
def test_its_end_is_waited_for_no_longer_than_asked(
    started: list[int], monkeypatch: pytest.MonkeyPatch, tells: bool
) -> None:
    if not tells:  # as an old kernel

        def refuse(pid: int) -> int:
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

        monkeypatch.setattr(os, "pidfd_open", refuse, raising=False)
    with start(f"{STARTS}{WAITS}", started, apart=True) as process:
        with pytest.raises(subprocess.TimeoutExpired, match=r"0\.1 seconds"):
            process.wait(timeout=0.1)
        process.end()
        assert process.wait(timeout=300) == process.wait(timeout=0) != 0


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (-11, "ended by SIGSEGV, an invalid memory access"),
        (-8, "ended by SIGFPE, an integer division by zero: does a tensor have a dimension of 0?"),
        (-6, "ended by SIGABRT"),
        (-9, "when memory runs out"),
        (0xC0000005, "ended by SIGSEGV (status 0xc0000005)"),
        (-1073741819, "ended by SIGSEGV (status 0xc0000005)"),
        (-250, "ended by signal 250"),
    ],
)
def test_signals_and_statuses_in_words(code: int, words: str) -> None:
    assert words in (native_process.describe_end(code) or "")


@pytest.mark.parametrize("code", [0, 1, 137])
def test_a_process_that_ended_by_itself_did_not_crash(code: int) -> None:
    assert native_process.describe_end(code) is None


@pytest.mark.needs("POSIX", "Windows has no SIGCHLD")
def test_nothing_is_started_whose_end_would_be_unknown(started: list[int]) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(UsageError, match="cannot learn how its workers end"):
            start("", started, apart=False)
    finally:
        signal.signal(signal.SIGCHLD, before)
