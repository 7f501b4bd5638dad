"""Supervise a process with native code: a parent process ends it and everything it left behind.

Native code may hold the interpreter's lock for any time, and may start processes that leave its
process group. So a process that will run native code forks first: the child goes on, and the
parent, the supervisor, runs no foreign native code and waits. On Linux every orphan below the
supervisor becomes its child (PR_SET_CHILD_SUBREAPER), and the kernel wakes the supervisor when its
own parent ends (PR_SET_PDEATHSIG), even if it is stopped. On Windows a job object does the same. On
macOS nothing does.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import sys
from collections.abc import Iterator
from io import FileIO
from typing import Final

if sys.platform != "win32":
    import resource

_PDEATHSIG: Final = 1
"""prctl.h: PR_SET_PDEATHSIG, like the next one."""
_CHILD_SUBREAPER: Final = 36

if sys.platform == "linux":
    _AWAITED: Final = {signal.SIGCHLD, signal.SIGCONT, signal.SIGTERM, signal.SIGHUP}

    def supervise() -> None:
        """Fork: continue in a child process, while this process only supervises the child.

        Call this before there is a second thread. The supervisor ends as the child does: with the
        child's exit code, or by its signal.
        """
        parent, own = os.getppid(), os.getpid()
        # The kernel sends the signal when the *thread* that started us ends. SIGCONT is harmless if
        # other threads of our parent live on, and wakes us if we were stopped.
        _prctl(_PDEATHSIG, signal.SIGCONT)
        _prctl(_CHILD_SUBREAPER, 1)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {*_AWAITED, signal.SIGINT})
        if _is_unheard():
            os._exit(1)
        child = os.fork()
        if child:
            status = _wait(child, parent)
            _end_rest()
            _end_as(status)
        _prctl(_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != own:
            os._exit(1)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _prctl(option: int, value: int) -> None:

        ctypes.CDLL(None).prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)

    def _is_unheard() -> bool:
        """Tell whether stdout has no reader, since our parent ended before we could watch it."""
        poll = select.poll()
        poll.register(1, 0)
        return any(events & select.POLLERR for _, events in poll.poll(0))

    def _wait(child: int, parent: int) -> int:
        """Wait until the child or the parent has ended. Return the child's status as `os.wait`
        does.
        """
        while True:
            received = signal.sigwait(_AWAITED)
            with contextlib.suppress(ChildProcessError):
                while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                    if ended[0] == child:
                        return ended[1]
            if os.getppid() != parent or received in (signal.SIGTERM, signal.SIGHUP):
                return signal.SIGKILL

    def _end_rest() -> None:
        """End all processes below this one. Orphans have become our children."""
        try:
            os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return

        refused: set[int] = set()
        while children := set(_children()) - refused:
            for child in children:
                try:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                except PermissionError:  # it runs as another user
                    refused.add(child)
                except (ProcessLookupError, ChildProcessError):
                    continue

    def _children() -> Iterator[int]:
        """Yield the children of this process. Avoids psutil, which every worker would have to
        import.
        """
        for entry in os.scandir("/proc"):
            if entry.name.isdigit():
                with contextlib.suppress(OSError), FileIO(f"/proc/{entry.name}/stat") as stream:
                    if int(stream.read().rpartition(b")")[2].split()[1]) == os.getpid():
                        yield int(entry.name)

    def _end_as(status: int) -> None:
        code = os.waitstatus_to_exitcode(status)
        if code < 0:
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child dumped core
            if -code not in (signal.SIGKILL, signal.SIGSTOP):
                signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
            os.kill(os.getpid(), -code)
        os._exit(code)

else:

    def supervise() -> None:
        """Do nothing: on Windows the job object of the parent ends the processes."""
