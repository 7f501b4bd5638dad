"""Run native code in a child process, end it with all its descendants, and describe how it ended.

Vendor SDKs crash the process instead of raising errors (real-eps.md sections 5, 6, 9): SIGSEGV for
a corrupt binary, SIGFPE for a model with batch 0, SIGABRT for a sharing group without a last
session.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Final

import psutil

from epctx.errors import UsageError

_LIKELY: Final = {
    "SIGABRT": "an assertion of the SDK, or an exception that nobody caught",
    "SIGFPE": "an integer division by zero: does a tensor have a dimension of 0?",
    "SIGILL": "an instruction that this CPU does not have",
    "SIGKILL": "which the system sends when memory runs out",
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
"""NTSTATUS to the signal that a POSIX system would have sent."""


def describe_end(code: int) -> str | None:
    """Describe a crash, as in `ended by SIGFPE, an integer division by zero: ...`; None for a
    normal exit.

    Args:
        code: exit code as subprocess returns it: negative for a signal, an NTSTATUS on Windows.
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


if sys.platform == "win32":
    from epctx.providers.onnxruntime import job_object


class NativeProcess(subprocess.Popen[bytes]):
    """A process with all processes that it starts.

    Args:
        command: command and arguments.
        folder: current folder of the process; None for the one of this process.
        variables: environment of the process; None for the one of this process.
        stdin: as in `subprocess.Popen`, like `stdout` and `stderr`.
        apart: Ctrl-C in a terminal does not reach it.

    Raises:
        OSError: the process cannot be started.
        UsageError: this process ignores SIGCHLD.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        folder: Path | None = None,
        variables: Mapping[str, str] | None = None,
        stdin: IO[bytes] | int,
        stdout: IO[bytes] | int,
        stderr: IO[bytes] | int,
        apart: bool = False,
    ) -> None:
        if sys.platform != "win32" and signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
            raise UsageError(
                "this process ignores SIGCHLD, so it cannot learn how its workers end",
                remedy="call signal.signal(signal.SIGCHLD, signal.SIG_DFL) before",
            )
        self._has_group = apart
        self._rest_ended = False
        flags = 0
        if sys.platform == "win32":
            group = subprocess.CREATE_NEW_PROCESS_GROUP if apart else 0
            flags = group | job_object.CREATE_SUSPENDED
        super().__init__(
            command,
            cwd=folder,
            env=variables,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            creationflags=flags,
            start_new_session=apart,  # no effect on Windows, which has no sessions
        )
        if sys.platform == "win32":
            try:
                self._job = job_object.JobObject(job_object.system(), self.pid)
            except BaseException:
                self.kill()
                self.wait()
                raise

    def wait(self, timeout: float | None = None) -> int:
        """Wait as `subprocess.Popen` does. On Linux the system reports the end at once, while Popen
        polls up to 50 ms apart.
        """
        if sys.platform == "linux" and timeout is not None and self.returncode is None:
            with contextlib.suppress(OSError):  # an old kernel
                ended = os.pidfd_open(self.pid)
                try:
                    poll = select.poll()
                    poll.register(ended, select.POLLIN)
                    if not poll.poll(math.ceil(1000 * timeout)):
                        raise subprocess.TimeoutExpired(self.args, timeout)
                finally:
                    os.close(ended)
        return super().wait(timeout)

    def end(self) -> None:
        """End the process and every process that it started, at once. May be called from any
        thread.
        """
        if self.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                process = psutil.Process(self.pid)
                for child in process.children(recursive=True):
                    with contextlib.suppress(psutil.NoSuchProcess):
                        child.kill()
                process.kill()
            self.wait()
        self.end_rest()

    def end_rest(self) -> None:
        """End the processes that this process left behind. Call this soon after its end, before its
        id is reused.

        On Windows these are the processes of its job; elsewhere those of its process group, which
        exists if `apart` is set.
        """
        if self._rest_ended:
            return
        self._rest_ended = True
        if sys.platform == "win32":
            self._job.close()
        elif self._has_group:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    variables: Mapping[str, str] | None = None,
    stderr: IO[bytes] | int = subprocess.PIPE,
    timeout: float,
) -> subprocess.CompletedProcess[bytes]:
    """Run a command to its end, as `subprocess.run` does, with an empty stdin.

    Raises:
        OSError: the process cannot be started.
        subprocess.TimeoutExpired: `timeout` seconds passed. The process and all it started were
            ended.
    """
    process = NativeProcess(
        command,
        folder=folder,
        variables=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )
    with process:
        try:
            output, errors = process.communicate(timeout=timeout)
        except BaseException:
            process.end()
            raise
        process.end_rest()
    return subprocess.CompletedProcess(process.args, process.returncode, output, errors)
