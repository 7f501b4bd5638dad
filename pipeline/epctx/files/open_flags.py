"""Flags of `os.open` for each platform: for new files, and for reading files that others may have
exchanged.
"""

from __future__ import annotations

import os
import sys
from typing import Final

if sys.platform == "win32":
    READ: Final = os.O_RDONLY | os.O_BINARY
    """Bytes as they are."""
    NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_BINARY
    """For a file that is not there yet."""
    NO_LINK: Final = 0
    """No flag on Windows: callers look at a file before they open it."""
else:
    READ: Final = os.O_RDONLY | os.O_NONBLOCK
    """A pipe that nobody writes to is not waited for."""
    NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    """For a file that is not there yet."""
    NO_LINK: Final = os.O_NOFOLLOW
    """A link in the file's place is refused."""
