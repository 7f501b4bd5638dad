"""A child process that runs native code: ended with all that it started, and how it ended in words.

Vendor SDKs end the process where others raise (real-eps.md sections 5, 6, 9): a corrupt binary is a
SIGSEGV, a model with batch 0 a SIGFPE, a sharing group that nobody stopped a SIGABRT.
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


def describe_end(code: int) -> str | None:
    """`ended by SIGFPE (an integer division by zero: ...)`; None if it ended by itself.

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


if sys.platform == "win32":
    from epctx.providers.onnxruntime import job_object


class NativeProcess(subprocess.Popen[bytes]):
    """A process, and all that it starts.

    Args:
        command: what to run.
        folder: its current folder; None for that of this process.
        variables: its environment; None for that of this process.
        stdin: as of `subprocess.Popen`, like the two below.
        apart: Ctrl-C in a terminal does not reach it.

    Raises:
        OSError: it cannot be started.
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
            start_new_session=apart,  # Windows knows no sessions: there it does nothing
        )
        if sys.platform == "win32":
            try:
                self._job = job_object.JobObject(job_object.system(), self.pid)
            except BaseException:
                self.kill()
                self.wait()
                raise

    def wait(self, timeout: float | None = None) -> int:
        """Wait as `subprocess.Popen` does, whose polls are up to 50 ms apart; on Linux the system
        reports the end.
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
        """End it and every process that it started, at once. From any thread."""
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
        """End the processes that it left behind, once it has ended; later its number may be reused.

        On Windows that is all of its job; elsewhere all of its process group, which it has if it is
        `apart`.
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
    """Run a command to its end, as `subprocess.run` does; nothing comes from stdin.

    Raises:
        OSError: it cannot be started.
        subprocess.TimeoutExpired: `timeout` seconds passed; it and what it started are gone.
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
            printed, told = process.communicate(timeout=timeout)
        except BaseException:
            process.end()
            raise
        process.end_rest()
    return subprocess.CompletedProcess(process.args, process.returncode, printed, told)
