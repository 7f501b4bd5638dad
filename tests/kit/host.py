"""What a host may lack that a test needs: `pytest.mark.needs(what, why)` says it of the test.

`tests/conftest.py` skips the test where its host lacks it, with both as the reason; no test skips
itself. What an EP needs is said by `pytest.mark.needs_device`.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from epctx.commands.reproduce.variations import faketime
from epctx.files import identity
from tests.faults import full_disk
from tests.kit import store_servers

APART: Final = ("unshare", "--pid", "--mount", "--fork", "--mount-proc", "--kill-child")
"""What a command is put after to run on a machine of its own, as containers are: Linux's."""
_MODULE: Final = "module "
_PROGRAM: Final = "program "


def lacking(need: str, folder: Path) -> bool:
    """Whether this host lacks something.

    Args:
        need: a name of `NEEDS`, `module NAME`, which is to be importable, or `program NAME`.
        folder: where tests have their files.
    """
    if need.startswith(_MODULE):
        return importlib.util.find_spec(need.removeprefix(_MODULE)) is None
    if need.startswith(_PROGRAM):
        return shutil.which(need.removeprefix(_PROGRAM)) is None
    return not NEEDS[need](folder)


def _links(folder: Path) -> bool:
    """Windows asks for a privilege."""
    link = folder / f"link-{os.getpid()}"
    try:
        link.symlink_to(folder)
    except OSError:
        return False
    link.unlink()
    return True


def _tells(folder: Path) -> bool:
    """A write through a memory map shows, as on most file systems of disks, and not on tmpfs."""
    return sys.platform == "linux" and identity.tells(folder, identity.of_path(folder).text)


def _leases(folder: Path) -> bool:
    """On an overlay a lease says little."""
    if sys.platform != "linux":
        return False
    return identity._type(folder, str(folder.stat().st_dev)) != identity._OVERLAY


@functools.cache
def _namespaces() -> bool:
    if sys.platform != "linux" or shutil.which("unshare") is None:
        return False
    return subprocess.run([*APART, "true"], capture_output=True).returncode == 0


def _two_cores() -> bool:
    return sys.platform == "linux" and len(os.sched_getaffinity(0)) > 1


def _permissions() -> bool:
    """They hold for whoever is not root, and for root without its privileges."""
    return sys.platform != "win32" and (os.geteuid() != 0 or shutil.which("setpriv") is not None)


NEEDS: Final[Mapping[str, Callable[[Path], bool]]] = {
    "Linux": lambda folder: sys.platform == "linux",
    "POSIX": lambda folder: os.name == "posix",
    "64 bits": lambda folder: ctypes.sizeof(ctypes.c_void_p) == 8,
    "a C compiler": lambda folder: full_disk.possible(),
    "affinities": lambda folder: hasattr(os, "sched_getaffinity"),
    "azurite and s3rver": lambda folder: store_servers.has_node_servers(),
    "copy_file_range": lambda folder: hasattr(os, "copy_file_range"),
    "two cores": lambda folder: _two_cores(),
    "/dev/full": lambda folder: Path("/dev/full").exists(),
    "/proc": lambda folder: Path("/proc/self/status").exists(),
    "faketime": lambda folder: faketime() is not None,
    "file systems that tell of each write": _tells,
    "leases": _leases,
    "links": _links,
    "namespaces": lambda folder: _namespaces(),
    "permissions": lambda folder: _permissions(),
    "torch in .venv-zoo": lambda folder: Path(".venv-zoo/.ready").exists(),
    "root": lambda folder: hasattr(os, "geteuid") and os.geteuid() == 0,
}
"""By name: whether this host has it."""
