"""Worker process as the runner sees it: start it, give it jobs, end it.

The worker's stdout and stderr are its log, since vendor SDKs print to file descriptor 1
(real-eps.md section 9). Its exit code counts more than an "ok" before it. Its environment is the
same for every user, folder and time.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

from epctx import codec, limits
from epctx.actions.action import Action, StageStarted
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, LogTail, TimedOut
from epctx.graph.native import Allowance, Work
from epctx.providers.onnxruntime import host, native_process
from epctx.providers.onnxruntime.native_process import NativeProcess
from epctx.worker import protocol, watchdog
from epctx.worker.protocol import Message
from epctx.worker.watchdog import Guard

T = TypeVar("T")
_DOING = {
    "load": "loading",
    "optimize": "optimizing",
    "quantize": "quantizing",
    "source": "running",
    "partition": "partitioning",
    "compile": "compiling",
    "dump": "writing",
    "verify": "running",
    "compose": "composing",
    "golden": "running",
}
_SIGKILL = 9
_TAIL = 20_000
"""Bytes at the end of a log that are searched for its last lines."""
LOG_LINES = 15
"""Number of log lines that an error quotes."""
REPORT_LINES = 60
"""Number of log lines that the report of a failed group has."""


class Worker:
    """A running worker process. Used by one thread at a time; `kill` by any.

    Args:
        folder: its working folder, which must not exist.
        log: file for its output.
        place: a number that no other compiling worker has; it selects the core for an EP that gets
            only one. None if it compiles for no such EP.
        variables: environment variables besides those of `environment`.

    Attributes:
        expired: whether it was ended because the budget of its bounded actions was used up.
        peak_memory: its largest resident size by the end of its last job, in bytes.
    """

    def __init__(
        self, folder: Path, log: Path, place: int | None, *, variables: Mapping[str, str]
    ) -> None:
        folder.mkdir(parents=True)
        self.log = log
        log.write_bytes(b"")
        self._job = _Job(log)
        worker_variables = environment(variables) | (
            {} if place is None else {host.PLACE: str(place)}
        )
        with log.open("ab") as stream:  # appending: shortening the log leaves no hole
            self._process = NativeProcess(
                [sys.executable, "-P", "-m", "epctx.worker"],
                folder=folder,
                variables=worker_variables,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                apart=True,
            )
        self._guard = Guard(self._process.pid, log)
        self._next_check = 0.0
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._killed: EpctxError | None = None
        self.expired = False
        self.peak_memory = 0
        assert self._process.stdout is not None
        threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True).start()

    def run(
        self,
        job: Sequence[Action[Any]],
        *,
        started: Callable[[StageStarted], None],
        finished: Callable[[int, Any], None] = lambda number, result: None,
        timeout: float | None = None,
        budget: float | None = None,
    ) -> list[Any]:
        """Run one job and return the results of its actions.

        If the budget ends the job (`expired`), only the finished actions have results. Without a
        budget left, the first bounded action is not begun.

        Args:
            started: receives each stage.
            finished: receives each result at once, with the index of its action.
            timeout: limit of the whole job, in seconds.
            budget: limit of its bounded actions, in seconds, from the first of them on.

        Raises:
            EpctxError: an action raised it, or `kill` was called with it.
            CompileError: the worker crashed, used too much memory, or sent an invalid answer.
            TimedOut: `timeout` seconds passed; the worker and its children are ended.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        self._job = _Job(self.log)
        self._guard.allow(None)
        requested = len(job)
        if budget is not None and budget <= 0:
            job = list(itertools.takewhile(lambda action: not action.bounded, job))
        assert self._process.stdin is not None
        # A dead worker is reported by `_receive`, which knows how it died.
        with contextlib.suppress(OSError, ValueError):  # ValueError: `kill` has closed it
            self._process.stdin.write(
                msgspec.json.encode(Message(job=protocol.encode(job))) + b"\n"
            )
            self._process.stdin.flush()
        try:
            results = self._answer(job, started, finished, (deadline, timeout), budget)
        except EpctxError as error:
            error.log = self._job.log_tail()
            named = str(self.log) in error.remedy
            if isinstance(error, CompileError | TimedOut) and error.log.lines and not named:
                error.remedy += f"; its log: {self.log}"
            raise
        self._job.done = True
        self.expired = self.expired or len(job) < requested
        return results

    def _answer(
        self,
        job: Sequence[Action[Any]],
        started: Callable[[StageStarted], None],
        finished: Callable[[int, Any], None],
        bound: tuple[float | None, float | None],
        budget: float | None,
    ) -> list[Any]:
        results: list[Any] = []
        ends: float | None = None
        while True:
            bounded = len(results) < len(job) and job[len(results)].bounded
            if bounded and ends is None and budget is not None:
                ends = time.monotonic() + budget
            message = self._receive(*bound, ends if bounded else None)
            if message is None:
                self.expired = True
                self.kill()
                return results
            if message.started:
                self._job.stage = self._decode(message.started, StageStarted)
                started(self._job.stage)
            elif message.native:
                ended = bytes(message.native) == b"null"
                self._guard.allow(None if ended else self._decode(message.native, Allowance))
            elif message.error is not None:
                raise protocol.restore(message.error, log=self.log)
            elif message.result and len(results) < len(job):
                results.append(self._decode(message.result, job[len(results)].result))
                finished(len(results) - 1, results[-1])
            elif message.done is not None and len(results) == len(job):
                self.peak_memory = message.done
                return results
            else:
                raise self._broken("an unexpected answer")

    def dismiss(self) -> None:
        """Let the worker begin to end after the last job; `close` waits for it."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.close()

    def close(self) -> None:
        """Let the worker end by itself. Raises CompileError, as `run`, if it does not end well."""
        self.dismiss()
        if not self.expired:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=60)
        self.kill()
        code = self._process.returncode
        if code != 0 and not self.expired:
            raise self._killed or self._job.crashed(code, self._guard.native)

    def kill(self, reason: EpctxError | None = None) -> None:
        """End the worker and all its child processes at once."""
        if self._process.poll() is None:
            self._killed = self._killed or reason
        self._process.end()
        self.dismiss()
        self._guard.close()

    @property
    def killed(self) -> bool:
        """Tell whether `kill` was called with a reason, which the next job raises."""
        return self._killed is not None

    @property
    def alive(self) -> bool:
        """Tell whether the process still runs."""
        return self._process.poll() is None

    def _read(self, stream: BinaryIO) -> None:
        with stream:
            while line := stream.readline(limits.WORKER_ANSWER.value):
                self._lines.put(line)
        self._lines.put(b"")

    def _receive(
        self, deadline: float | None, timeout: float | None, ends: float | None
    ) -> Message | None:
        """Return the worker's next message; None after the time `ends`."""
        while True:
            now = time.monotonic()
            if ends is not None and now >= ends:
                return None
            if now >= self._next_check or (deadline is not None and now >= deadline):
                self._next_check = now + watchdog.INTERVAL
                self._check_limits(deadline, timeout)
            moments = [m - time.monotonic() for m in (deadline, ends) if m is not None]
            wait = max(0.0, min([watchdog.INTERVAL, *moments]))
            try:
                line = self._lines.get(timeout=wait)
                break
            except queue.Empty:
                continue
        if not line:
            code = self._process.wait()
            self._process.end_rest()
            raise self._killed or self._job.crashed(code, self._guard.native)
        return self._decode(line, Message)

    def _check_limits(self, deadline: float | None, timeout: float | None) -> None:
        """End the worker, and raise, if it takes too long or too much memory."""
        if deadline is not None and time.monotonic() >= deadline:
            self.kill()
            raise TimedOut(
                f"no result within {timeout:g} s: ended",
                where=self._job.where,
                remedy="raise `timeout` in the model group, or make the model smaller",
            )
        try:
            self._guard.check()
        except CompileError:
            self.kill()
            raise

    def _decode(self, encoded: bytes | msgspec.Raw, kind: type[T]) -> T:
        try:
            return codec.decode(bytes(encoded), kind)
        except msgspec.MsgspecError as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> CompileError:
        """End the worker after an invalid message, and return the error."""
        self.kill()
        return CompileError(
            "the worker sent an invalid message",
            where=self._job.where,
            why=why,
            remedy=f"see its log: {self.log}",
        )


class _Job:
    """Present job of a worker, for error messages.

    Args:
        log: log of the worker; its present content belongs to earlier jobs.

    Attributes:
        stage: its running stage; None before the first one.
        done: whether all its results arrived.
    """

    def __init__(self, log: Path) -> None:
        self.stage: StageStarted | None = None
        self.done = False
        self._log = log
        self._begun = log.stat().st_size

    @property
    def where(self) -> str | None:
        """Stage and model, in words; None before the first stage."""
        if self.stage is None:
            return None
        model = f" model {self.stage.model}" if self.stage.model else ""
        return f"{self.stage.stage}{model}"

    def log_tail(self) -> LogTail:
        """Return the last lines of the log of this job."""
        with self._log.open("rb") as stream:
            stream.seek(max(self._begun, stream.seek(0, os.SEEK_END) - _TAIL))
            text = stream.read(_TAIL).decode(errors="replace")
        lines = [line for line in text.splitlines() if line.strip()]
        return LogTail(file=str(self._log), lines=tuple(lines[-REPORT_LINES:]))

    def crashed(self, code: int, native: Work | None) -> CompileError:
        """Return the error of a worker that ended with `code`, possibly in native work."""
        log = self.log_tail()
        tail = "\n".join(log.lines[-LOG_LINES:])
        remedy = f"see the whole log: {self._log}" if tail else "report it to the maker of the EP"
        if code == -_SIGKILL:
            remedy = "if nobody ended it, memory was short: build with fewer --jobs"
        error = CompileError(
            f"{self._who_crashed()}, {exit_words(code)}",
            why=f"its log ends with:\n{tail}" if tail else "it left no log",
            remedy=remedy,
            code=Code.OUT_OF_MEMORY if code == -_SIGKILL else Code.CRASHED,
        )
        error.starved = code == -_SIGKILL
        error.native = native
        error.log = log
        return error

    def _who_crashed(self) -> str:
        """Return, for example, `QNNExecutionProvider crashed while compiling model x`; a shorter
        text if less is known.
        """
        stage = self.stage
        who = stage.provider if stage is not None and stage.provider else "the worker process"
        if self.done:
            return f"{who} crashed while exiting, with all work done"
        if stage is None:
            return f"{who} crashed"
        what = f"model {stage.model}" if stage.model else "the session group"
        return f"{who} crashed while {_DOING[stage.stage]} {what}"


def exit_words(code: int) -> str:
    """Return an exit code in words: its signal with the meaning, or its number."""
    number = f"exit code {code:#x}" if code > 0xFFFF else f"exit code {code}"
    return native_process.describe_end(code) or number


KEPT_VARIABLES = (
    "PATH", "HOME", "USERPROFILE", "SYSTEMROOT", "SYSTEMDRIVE", "TEMP", "TMP", "TMPDIR",
    "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "COMSPEC", "APPDATA", "LOCALAPPDATA",
    "NUMBER_OF_PROCESSORS", "PROCESSOR_ARCHITECTURE", "EPCTX_CACHE_DIR",
    "EPCTX_HIDE_DEVICES",
)  # fmt: skip
"""Variables that a worker inherits, besides limits of epctx; others could change the output of an
SDK.
"""
SET_VARIABLES = {
    "LC_ALL": "C.UTF-8",
    "TZ": "UTC",
    "PYTHONHASHSEED": "0",
    "PYTHONUTF8": "1",
    "ORT_DISABLE_TELEMETRY": "1",
    "OPENBLAS_NUM_THREADS": "1",
}
"""Fixed variables of all workers. OpenBLAS needs no threads: nothing uses it."""


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a worker; `variables` are added, for `epctx reproduce`."""
    inherited = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    inherited |= {name: text for name, text in os.environ.items() if name.startswith(limits.PREFIX)}
    return inherited | SET_VARIABLES | dict(variables)
