"""Identities of files, which show that a file is unchanged without reading it (design section 9).

A change of a file shows in its times, with two exceptions. First, a mapped page that was written to
can be written to again without a trace, until the system has written the page back. So
`show_writes` is called before a file is hashed whose digest will be remembered. Second, some file
systems show such a write late or never: `tells` returns whether a file system shows them.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

if sys.platform != "win32":
    import fcntl

SETTLED = 2.0
"""Seconds after which a change shows in a file's times, even with a coarse file-system clock."""


@dataclass(frozen=True, kw_only=True)
class Identity:
    """A file's place, size and times at one moment.

    Attributes:
        text: device, inode, size, mtime and ctime (on Windows the change time, which is alike).
        changed: time of its last change of content or status, in seconds since 1970.
        taken: time when the identity was taken, also in seconds since 1970. Not compared.
    """

    text: str
    changed: float
    taken: float = field(compare=False)

    @property
    def settled(self) -> bool:
        """True if the last change was over two seconds before, so that later changes show in
        `text`.

        A file with a time in the future is never settled.
        """
        return self.settled_at(self.taken)

    def settled_at(self, moment: float) -> bool:
        """Return whether the identity was settled at an earlier `moment`."""
        return self.changed + SETTLED < moment


def of_content(status: os.stat_result) -> tuple[int, int, int, int]:
    """Return device, inode, size and time of the last write, which renaming does not change."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


def text_of(status: os.stat_result, changed_ns: int) -> str:
    """Return an identity as text, from a stat result and the time of the last change."""
    times = f"{status.st_mtime_ns}:{changed_ns}"
    return f"{status.st_dev}:{status.st_ino}:{status.st_size}:{times}"


def of_status(status: os.stat_result, changed_ns: int) -> Identity:
    """Make an identity from a stat result and the time of the last change of data or metadata."""
    return Identity(
        text=text_of(status, changed_ns),
        changed=max(status.st_mtime_ns, changed_ns) / 1e9,
        taken=time.time(),
    )


if sys.platform == "linux":
    _OVERLAY = 0x794C7630
    _TELLING = frozenset({0xEF53, 0x58465342, 0x9123683E, 0xF2F52010, _OVERLAY})
    """Types (linux/magic.h) of ext2 to ext4, XFS, Btrfs and F2FS, and of an overlay of these. ext4
    was measured; the others write-protect a page that was written back in the same way. Not tmpfs,
    where a page that was read before may be written to at any time, and no network file system,
    since another computer may have changed the file."""
    _UNSYNCED = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.EROFS)
    _types: dict[str, int] = {}

    def show_writes(descriptor: int) -> None:
        """Make every later write to an open file show in its times, if the file system has such
        times.

        Raises:
            OSError: the disk is broken.
        """
        # An overlay grants a lease even if the file is mapped, since the file below it is mapped.
        overlay = _type(descriptor, str(os.fstat(descriptor).st_dev)) == _OVERLAY
        if not overlay:
            with contextlib.suppress(OSError):  # not the owner, or it is open for writing
                # A read lease is granted only if nobody has the file open or mapped for writing.
                # Every later writer changes its times. The lease writes nothing to the disk. If
                # somebody opens the file now, a signal is sent; SIGURG does not end this process.
                fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
                return
            if _written_back(descriptor):
                return
        try:
            os.fdatasync(descriptor)
        except OSError as error:
            if error.errno not in _UNSYNCED:
                raise

    def _written_back(descriptor: int) -> bool:
        """Have the system write back the dirty pages of a file, without flushing the disk's cache.
        A clean file takes microseconds, with `fdatasync` up to 4 ms.
        """
        whole = (ctypes.c_longlong(0), ctypes.c_longlong(0))
        return not ctypes.CDLL(None).sync_file_range(descriptor, *whole, ctypes.c_uint(7))

    def tells(path: str | os.PathLike[str], text: str) -> bool:
        """Return whether the file system of a file with the identity `text` shows writes."""
        return _type(path, text.partition(":")[0]) in _TELLING

    def _type(place: int | str | os.PathLike[str], device: str) -> int:
        """Return the type of the file system of an open file or a path; 0 if unknown."""
        if device not in _types:
            status = (ctypes.c_long * 64)()  # struct statfs, which begins with it, has 15
            libc = ctypes.CDLL(None)
            if isinstance(place, int):
                failed = libc.fstatfs(place, status)
            else:
                failed = libc.statfs(os.fsencode(place), status)
            _types[device] = 0 if failed else status[0] & 0xFFFFFFFF
        return _types[device]

else:

    def show_writes(descriptor: int) -> None:
        """Do nothing: the system has no such call for a file that is open for reading."""

    def tells(path: str | os.PathLike[str], text: str) -> bool:
        """Return True: it is unknown, and assumed, that writes through a mapping show."""
        return True


if sys.platform == "win32":
    import ctypes
    import ctypes.wintypes
    import msvcrt

    class _BasicInfo(ctypes.Structure):
        """FILE_BASIC_INFO of winbase.h; times in 100 ns since 1601."""

        _fields_ = (
            ("created", ctypes.c_int64),
            ("accessed", ctypes.c_int64),
            ("written", ctypes.c_int64),
            ("changed", ctypes.c_int64),
            ("attributes", ctypes.wintypes.DWORD),
        )

    _information = ctypes.WinDLL("kernel32", use_last_error=True).GetFileInformationByHandleEx
    _information.argtypes = (
        ctypes.wintypes.HANDLE,
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.wintypes.DWORD,
    )
    _FILE_BASIC_INFO = 0

    def of_descriptor(descriptor: int) -> Identity:
        """Return the identity of an open file."""
        # Until Python 3.12, and by promise beyond, st_ctime is the creation time on Windows.
        info = _BasicInfo()
        handle = msvcrt.get_osfhandle(descriptor)
        if not _information(handle, _FILE_BASIC_INFO, ctypes.byref(info), ctypes.sizeof(info)):
            raise ctypes.WinError(ctypes.get_last_error())
        return of_status(os.fstat(descriptor), info.changed * 100)

    def of_path(path: Path) -> Identity:
        """Return the identity of the file at `path`, links followed. Raises OSError."""
        descriptor = os.open(path, os.O_RDONLY | os.O_BINARY)
        try:
            return of_descriptor(descriptor)
        finally:
            os.close(descriptor)

else:

    def of_descriptor(descriptor: int) -> Identity:
        """Return the identity of an open file."""
        status = os.fstat(descriptor)
        return of_status(status, status.st_ctime_ns)

    def of_path(path: Path) -> Identity:
        """Return the identity of the file at `path`, links followed. Raises OSError."""
        status = path.stat()
        return of_status(status, status.st_ctime_ns)
