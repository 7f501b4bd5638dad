"""Windows job objects: when a process in a job ends, all processes that it started end too.

Every process that a process of the job starts joins the job. When the job's last handle is closed,
the system ends all processes of the job. The system closes the handles of a process that ends for
any reason. So no process is left behind when a job is closed, or when this process is killed.

The functions get their types here and are called through `System`, so tests cover everything on
every platform except the loading of Windows' libraries. This module was not run on Windows.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from collections.abc import Callable
from typing import Any, Final

CREATE_SUSPENDED: Final = 0x00000004
"""winbase.h: for `subprocess.Popen(creationflags=...)`; `JobObject` lets the process run."""
_DIE_ON_UNHANDLED_EXCEPTION: Final = 0x00000400
_KILL_ON_JOB_CLOSE: Final = 0x00002000
"""winnt.h: JOB_OBJECT_LIMIT_*."""
_EXTENDED_LIMITS: Final = 9
"""winnt.h: JobObjectExtendedLimitInformation of JOBOBJECTINFOCLASS."""
_ACCESS: Final = 0x0001 | 0x0100 | 0x0800
"""winnt.h: PROCESS_TERMINATE, PROCESS_SET_QUOTA, which a job asks for, PROCESS_SUSPEND_RESUME."""

# ctypes.wintypes has the sizes of Windows on Windows only.
_BOOL = ctypes.c_int32
_DWORD = ctypes.c_uint32
_HANDLE = ctypes.c_void_p
_NTSTATUS = ctypes.c_int32


class BasicLimits(ctypes.Structure):
    """JOBOBJECT_BASIC_LIMIT_INFORMATION of winnt.h."""

    _fields_ = (
        ("process_time", ctypes.c_int64),
        ("job_time", ctypes.c_int64),
        ("flags", _DWORD),
        ("smallest_working_set", ctypes.c_size_t),
        ("largest_working_set", ctypes.c_size_t),
        ("processes", _DWORD),
        ("affinity", ctypes.c_size_t),
        ("priority", _DWORD),
        ("scheduling", _DWORD),
    )


class ExtendedLimits(ctypes.Structure):
    """JOBOBJECT_EXTENDED_LIMIT_INFORMATION of winnt.h."""

    _fields_ = (
        ("basic", BasicLimits),
        ("io_counters", ctypes.c_uint64 * 6),
        ("process_memory", ctypes.c_size_t),
        ("job_memory", ctypes.c_size_t),
        ("peak_process_memory", ctypes.c_size_t),
        ("peak_job_memory", ctypes.c_size_t),
    )


class System:
    """Windows functions that a job object needs, with their types.

    Without types, ctypes assumes results of 32 bits, but a handle may have 64.

    Args:
        kernel32: the library `kernel32`.
        ntdll: the library `ntdll`.
        failure: returns the error of the last failed call.
    """

    def __init__(
        self, kernel32: ctypes.CDLL, ntdll: ctypes.CDLL, failure: Callable[[], OSError]
    ) -> None:
        self.failure = failure
        self.create_job = _typed(
            kernel32.CreateJobObjectW, _HANDLE, ctypes.c_void_p, ctypes.c_wchar_p
        )
        self.set_limits = _typed(
            kernel32.SetInformationJobObject,
            _BOOL,
            _HANDLE,
            ctypes.c_int,
            ctypes.POINTER(ExtendedLimits),
            _DWORD,
        )
        self.open_process = _typed(kernel32.OpenProcess, _HANDLE, _DWORD, _BOOL, _DWORD)
        self.assign = _typed(kernel32.AssignProcessToJobObject, _BOOL, _HANDLE, _HANDLE)
        self.close = _typed(kernel32.CloseHandle, _BOOL, _HANDLE)
        self.resume = _typed(ntdll.NtResumeProcess, _NTSTATUS, _HANDLE)


def _typed(function: Any, result: type, *arguments: type) -> Callable[..., Any]:
    function.restype = result
    function.argtypes = arguments
    called: Callable[..., Any] = function
    return called


class JobObject:
    """A job with one process that was started suspended. The constructor resumes the process.

    The process starts suspended so that it cannot start others before it is in the job. In a
    virtual environment, `python.exe` is a launcher that starts the real one at once.

    Args:
        system: the functions to call.
        process: process id; nobody may have waited for the process yet.

    Raises:
        OSError: the system refuses the job; the process is still suspended.
    """

    def __init__(self, system: System, process: int) -> None:
        self._system = system
        self._handle: int | None = self._of(system.create_job(None, None))
        try:
            self._limit()
            self._take(process)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End all processes of the job. Idempotent."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._system.close(handle)

    def _limit(self) -> None:
        limits = ExtendedLimits()
        # A crash ends the process at once, without a dialog that waits for a user.
        limits.basic.flags = _KILL_ON_JOB_CLOSE | _DIE_ON_UNHANDLED_EXCEPTION
        size = ctypes.sizeof(limits)
        if not self._system.set_limits(self._handle, _EXTENDED_LIMITS, limits, size):
            raise self._system.failure()

    def _take(self, number: int) -> None:
        process = self._of(self._system.open_process(_ACCESS, False, number))
        try:
            self._assign(process)
            status = self._system.resume(process)
            if status < 0:
                raise OSError(f"the process cannot be resumed: status {status & 0xFFFFFFFF:#x}")
        finally:
            self._system.close(process)

    def _assign(self, process: int) -> None:
        if not self._system.assign(self._handle, process):
            failure = self._system.failure()
            # This process may be in a job that forbids nested jobs. Then processes are ended by
            # parentage, as far as it is known; the build goes on.
            if not isinstance(failure, PermissionError):
                raise failure

    def _of(self, handle: int | None) -> int:
        if handle is None:  # ctypes turns NULL into None
            raise self._system.failure()
        return handle


if sys.platform == "win32":

    @functools.cache
    def system() -> System:
        """Return Windows' own functions."""
        return System(
            ctypes.WinDLL("kernel32", use_last_error=True),
            ctypes.WinDLL("ntdll"),
            lambda: ctypes.WinError(ctypes.get_last_error()),
        )
