"""Job objects of Windows, as far as another system can try them: see `FakeWindows`."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest

from epctx.providers.onnxruntime.job_object import (
    BasicLimits,
    ExtendedLimits,
    JobObject,
    System,
)

JOB, PROCESS = 0x7F00_0000_0010, 0x7F00_0000_0020
"""Handles, of which a C int holds the lower half only."""
NUMBER = 4711
KILL_ON_JOB_CLOSE, DIE_ON_UNHANDLED_EXCEPTION = 0x2000, 0x400
DENIED, OTHER = PermissionError(13, "denied"), OSError(22, "another reason")
Handle = ctypes.c_void_p


class FakeWindows:
    """A mock of kernel32 and ntdll, which are nowhere but on Windows.

    Its functions are called by their address, without types, as ctypes finds those of a library. So
    what they get has gone through the types that the code gives them.

    Args:
        refused: the function that fails.
        reason: what the system says of it.
    """

    def __init__(self, refused: str = "", reason: OSError = OTHER) -> None:
        self.calls: list[tuple[object, ...]] = []
        self._refused = refused
        self._reason = reason
        self._kept: list[object] = []
        boolean, word = ctypes.c_int32, ctypes.c_uint32
        self._add("CreateJobObjectW", self._create, Handle, Handle, ctypes.c_wchar_p)
        limits = ctypes.POINTER(ExtendedLimits)
        self._add(
            "SetInformationJobObject", self._limit, boolean, Handle, ctypes.c_int, limits, word
        )
        self._add("OpenProcess", self._open, Handle, word, boolean, word)
        self._add("AssignProcessToJobObject", self._assign, boolean, Handle, Handle)
        self._add("NtResumeProcess", self._resume, ctypes.c_int32, Handle)
        self._add("CloseHandle", self._close, boolean, Handle)

    def system(self) -> System:
        library: Any = self
        return System(library, library, lambda: self._reason)

    def names(self) -> list[object]:
        return [call[0] for call in self.calls]

    def _add(self, name: str, function: Callable[..., object], *types: Any) -> None:
        called = ctypes.CFUNCTYPE(*types)(function)
        self._kept.append(called)
        address = ctypes.cast(called, ctypes.c_void_p).value
        assert address is not None
        setattr(self, name, ctypes.CFUNCTYPE(ctypes.c_int)(address))

    def _told(self, name: str, *arguments: object) -> bool:
        self.calls.append((name, *arguments))
        return name != self._refused

    def _create(self, attributes: object, name: object) -> int | None:
        return JOB if self._told("create", attributes, name) else None

    def _limit(self, job: int, kind: int, limits: Any, size: int) -> bool:
        return self._told("limit", job, kind, limits.contents.basic.flags, size)

    def _open(self, access: int, inherited: int, number: int) -> int | None:
        return PROCESS if self._told("open", access, inherited, number) else None

    def _assign(self, job: int, process: int) -> bool:
        return self._told("assign", job, process)

    def _resume(self, process: int) -> int:
        return 0 if self._told("resume", process) else ctypes.c_int32(0xC0000022).value

    def _close(self, handle: int) -> bool:
        return self._told("close", handle)


@pytest.mark.needs("64 bits", "sizes of a 64-bit system")
def test_the_structures_are_laid_out_as_winnt_h_has_them() -> None:
    assert ctypes.sizeof(BasicLimits) == 64
    assert BasicLimits.flags.offset == 16
    assert BasicLimits.affinity.offset == 48
    assert ctypes.sizeof(ExtendedLimits) == 144
    assert ExtendedLimits.io_counters.offset == 64
    assert ExtendedLimits.process_memory.offset == 112


def test_a_process_runs_when_it_is_in_the_job_and_ends_with_it() -> None:
    windows = FakeWindows()
    job = JobObject(windows.system(), NUMBER)
    flags = KILL_ON_JOB_CLOSE | DIE_ON_UNHANDLED_EXCEPTION
    size = ctypes.sizeof(ExtendedLimits)
    assert windows.calls == [
        ("create", None, None),
        ("limit", JOB, 9, flags, size),
        ("open", 0x0901, 0, NUMBER),
        ("assign", JOB, PROCESS),
        ("resume", PROCESS),
        ("close", PROCESS),
    ]
    job.close()
    job.close()
    assert windows.calls[6:] == [("close", JOB)]


def test_without_its_types_half_of_a_handle_would_be_lost() -> None:
    untyped: Any = FakeWindows()
    assert untyped.CreateJobObjectW(None, None) == JOB & 0xFFFFFFFF


@pytest.mark.parametrize(
    ("refused", "names"),
    [
        ("create", ["create"]),
        ("limit", ["create", "limit", "close"]),
        ("open", ["create", "limit", "open", "close"]),
        ("assign", ["create", "limit", "open", "assign", "close", "close"]),
        ("resume", ["create", "limit", "open", "assign", "resume", "close", "close"]),
    ],
)
def test_what_the_system_refuses_leaves_no_handle(refused: str, names: list[str]) -> None:
    windows = FakeWindows(refused)
    words = "status 0xc0000022" if refused == "resume" else "another reason"
    with pytest.raises(OSError, match=words):
        JobObject(windows.system(), NUMBER)
    assert windows.names() == names


def test_a_process_that_may_be_in_no_job_runs_all_the_same() -> None:
    windows = FakeWindows("assign", DENIED)
    JobObject(windows.system(), NUMBER).close()
    assert windows.names()[3:] == ["assign", "resume", "close", "close"]
