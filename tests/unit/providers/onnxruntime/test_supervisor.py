"""What a supervised process leaves behind is nothing, however it or who started it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import psutil
import pytest

from epctx.providers.onnxruntime.native_process import NativeProcess

pytestmark = pytest.mark.needs("Linux", "a subreaper and a parent-death signal are Linux's")
SUPERVISED = (
    "import ctypes, os, signal, subprocess, sys, time\n"
    "from epctx.providers.onnxruntime import supervisor\n"
    "supervisor.supervise()\n"
)
CHILD = (
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'],"
    " start_new_session=True)\n"
)
HOLDS_THE_LOCK = "print(os.getpid(), flush=True)\nctypes.PyDLL(None).sleep(600)\n"
STARTER = """
import subprocess, sys
from epctx.providers.onnxruntime.native_process import NativeProcess
process = NativeProcess([sys.executable, "-c", sys.argv[1]], stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE, stderr=None, apart=True)
for line in process.stdout:
    print(process.pid, line.decode(), flush=True)
"""
"""Starts a process, and says its number and what it says."""


@pytest.fixture
def numbers() -> Iterator[list[int]]:
    """Of processes; those that are still there are ended."""
    found: list[int] = []
    yield found
    for number in found:
        if psutil.pid_exists(number):
            psutil.Process(number).kill()


def start(code: str) -> NativeProcess:
    return NativeProcess(
        [sys.executable, "-c", SUPERVISED + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        apart=True,
    )


def said(process: subprocess.Popen[bytes]) -> list[int]:
    """The numbers that it says in a line."""
    assert process.stdout is not None
    return [int(word) for word in process.stdout.readline().split()]


def lives(number: int) -> bool:
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def are_gone(numbers: list[int]) -> bool:
    deadline = time.monotonic() + 300
    while any(map(lives, numbers)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(lives, numbers))


@pytest.mark.parametrize("stopped", [False, True])
def test_it_ends_with_who_started_it_though_native_code_holds_the_interpreters_lock(
    stopped: bool, numbers: list[int]
) -> None:
    code = f"{SUPERVISED}{CHILD}print(child.pid, end=' ')\n{HOLDS_THE_LOCK}"
    starter = subprocess.Popen([sys.executable, "-c", STARTER, code], stdout=subprocess.PIPE)
    numbers += said(starter)
    assert len(numbers) == 3 and all(map(lives, numbers))
    if stopped:
        for number in numbers:
            os.kill(number, signal.SIGSTOP)
    starter.kill()
    starter.communicate()
    assert are_gone(numbers)


def test_what_left_its_process_group_ends_with_it(numbers: list[int]) -> None:
    """A daemon: its parent ended, its session is its own."""
    daemon = "import subprocess, sys\n" + CHILD + "print(child.pid, flush=True)"
    with start(f"subprocess.run([sys.executable, '-c', {daemon!r}]); os._exit(3)\n") as process:
        numbers += said(process)
        assert process.wait(timeout=300) == 3
        assert are_gone(numbers)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_it_ends_with_all_below_it_when_it_is_told_to(
    number: signal.Signals, numbers: list[int]
) -> None:
    with start(f"{CHILD}print(child.pid, end=' ')\n{HOLDS_THE_LOCK}") as process:
        numbers += said(process)
        process.send_signal(number)
        assert process.wait(timeout=300) < 0
        assert are_gone(numbers)


def test_without_its_supervisor_it_ends(numbers: list[int]) -> None:
    with start(HOLDS_THE_LOCK) as process:
        numbers += said(process)
        process.kill()
        assert are_gone(numbers)


def test_it_outlives_the_thread_that_started_it() -> None:
    """The kernel takes the end of that thread for the end of the parent."""
    started: list[NativeProcess] = []

    def starts() -> None:
        process = start("print(1, flush=True)\ninput()\nos._exit(5)\n")
        started.append(process)
        assert said(process) == [1]  # now the kernel knows that thread

    thread = threading.Thread(target=starts)
    thread.start()
    thread.join()
    (process,) = started
    with process:
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        assert process.wait(timeout=300) == 5


def test_it_does_not_begin_when_who_started_it_is_gone_already(numbers: list[int]) -> None:
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-c", f"{SUPERVISED}os._exit(7)\n"], stdout=write, timeout=300
    )
    os.close(write)
    assert ended.returncode == 1


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("os._exit(3)", 3),
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL),
        ("ctypes.string_at(0)", -signal.SIGSEGV),
        ("os.abort()", -signal.SIGABRT),
        ("assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == set()", 0),
    ],
)
def test_its_end_is_told_as_it_was(code: str, expected: int) -> None:
    with start(f"{code}\n") as process:
        assert process.wait(timeout=300) == expected


@pytest.mark.parametrize(
    "module",
    [
        "epctx.worker",
        "epctx.commands.doctor.probe",
        "epctx.providers.onnxruntime.qnn.binary_reader",
    ],
)
def test_who_runs_native_code_is_supervised(module: str) -> None:
    """Where there is a pipe that nobody reads, they do not begin at all."""
    read, write = os.pipe()
    os.close(read)
    ended = subprocess.run(
        [sys.executable, "-P", "-m", module, "no argument of theirs"],
        stdin=subprocess.DEVNULL,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=300,
    )
    os.close(write)
    assert (ended.returncode, ended.stderr) == (1, b"")
