"""A job object of Windows: a process in one takes along all that it started when it ends.

Every process that a process of the job starts is in the job too. When its last handle is closed,
the system ends them all; it closes those of a process that ends, however that ends. So nothing is
left behind by a process whose job is closed, nor by this one if it is killed.

The functions are given their types here, and called by way of `System`, so that all but the loading
of Windows' own libraries is tried on every platform. On Windows itself it was not run by us.
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

# Not those of ctypes.wintypes, which have the sizes of Windows on Windows only.
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
    """The functions of Windows that a job object needs, with their types.

    Without them ctypes takes what they return for 32 bits, of which a handle may have 64.

    Args:
        kernel32: the library of this name.
        ntdll: likewise.
        failure: why the last call failed.
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
    """A job with one process, which was started suspended and runs from now on.

    Suspended, since it might start others before it is in the job: `python.exe` of a virtual
    environment does so at once, being a launcher of the real one.

    Args:
        system: the functions to call.
        process: its number; it must not have been waited for.

    Raises:
        OSError: the system refuses; the process is still suspended.
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
        """End all that is in it. Nothing happens the second time."""
        handle, self._handle = self._handle, None
        if handle is not None:
            self._system.close(handle)

    def _limit(self) -> None:
        limits = ExtendedLimits()
        # A crash ends the process at once, with no dialog that waits for somebody to close it.
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
            # Somebody's job that this process is in may forbid jobs within. Then it is ended as far
            # as it can be told by who started whom, which is no reason to build nothing.
            if not isinstance(failure, PermissionError):
                raise failure

    def _of(self, handle: int | None) -> int:
        if handle is None:  # what ctypes makes of NULL
            raise self._system.failure()
        return handle


if sys.platform == "win32":

    @functools.cache
    def system() -> System:
        """Windows' own functions."""
        return System(
            ctypes.WinDLL("kernel32", use_last_error=True),
            ctypes.WinDLL("ntdll"),
            lambda: ctypes.WinError(ctypes.get_last_error()),
        )
