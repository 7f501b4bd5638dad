"""Flags of `os.open` for each platform, for new files and for files that others may replace."""

from __future__ import annotations

import os
import sys
from typing import Final

if sys.platform == "win32":
    READ: Final = os.O_RDONLY | os.O_BINARY
    """Read bytes without translation of line ends."""
    NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_BINARY
    """For a file that is not there yet."""
    NO_LINK: Final = 0
    """No flag on Windows: callers look at a file before they open it."""
else:
    READ: Final = os.O_RDONLY | os.O_NONBLOCK
    """Do not wait for a pipe without a writer."""
    NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    """For a file that is not there yet."""
    NO_LINK: Final = os.O_NOFOLLOW
    """Refuse a link in place of the file."""
