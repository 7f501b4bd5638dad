"""The circumstances of a build: what a process is in, applied to the process that builds.

Variables are set when it is started; the rest it takes on itself, before it does anything else, so
that its workers are in the same.
"""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct, field

from epctx.providers.onnxruntime import host

if sys.platform != "win32":
    import pwd

_NEW_UTS = 0x04000000
"""linux/sched.h: CLONE_NEWUTS."""


class Circumstances(Struct, frozen=True, kw_only=True):
    """What is not as it is.

    Attributes:
        variables: of the environment, of the build and of its workers, whose own is scrubbed.
        worker_variables: of the workers' environment only.
        umask: None: as it is, likewise below.
        one_core: it and its workers are kept on one core.
        user: the user that it becomes.
        host_name: what the host is called.
        jobs: session groups at a time.
        elsewhere: its folder is at another path.
        files_reversed: its sources are written in the reverse order.
        files_aged: its sources are as old as Unix.
    """

    variables: Mapping[str, str] = field(default_factory=dict)
    worker_variables: Mapping[str, str] = field(default_factory=dict)
    umask: int | None = None
    one_core: bool = False
    user: str | None = None
    host_name: str | None = None
    jobs: int = 1
    elsewhere: bool = False
    files_reversed: bool = False
    files_aged: bool = False


def enter(wanted: Circumstances, *, folder: Path, manifest: Path) -> dict[str, str]:
    """Take on circumstances, in a process that has one thread; what could not be, and why.

    Args:
        wanted: what to take on; `variables` are there already.
        folder: becomes the user's.
        manifest: what the user must be able to read.
    """
    obstacles: dict[str, str] = {}
    if wanted.umask is not None:
        os.umask(wanted.umask)
    if wanted.one_core:
        _keep_on_one_core(obstacles)
    if wanted.host_name is not None:
        _rename_host(wanted.host_name, obstacles)
    if wanted.user is not None:
        _become(wanted.user, folder, manifest, obstacles)
    return obstacles


def _keep_on_one_core(obstacles: dict[str, str]) -> None:
    cores = host.cores()
    if len(cores) < 2:
        obstacles["cores"] = (
            "this system has no affinities" if not cores else "there is only one core here"
        )
    else:
        host.keep_on({max(cores)})


def _rename_host(name: str, obstacles: dict[str, str]) -> None:
    if sys.platform != "linux":
        obstacles["host-name"] = "only Linux can give a process another host name"
        return
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_UTS):
        obstacles["host-name"] = f"the system refuses: {os.strerror(ctypes.get_errno())}"
        return
    socket.sethostname(name)


def _become(name: str, folder: Path, manifest: Path, obstacles: dict[str, str]) -> None:
    if sys.platform == "win32":
        obstacles["user"] = "not on Windows"
    elif os.geteuid() != 0:
        obstacles["user"] = "only root can become another user"
    else:
        try:
            user = pwd.getpwnam(name)
        except KeyError:
            obstacles["user"] = f"there is no user {name}"
            return
        for path in (folder, *folder.rglob("*")):
            os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)
        why = _cannot_run(user.pw_uid, user.pw_gid, folder, manifest)
        if why is not None:
            obstacles["user"] = f"{name} cannot run this Python and epctx: {why}"
            return
        os.setgroups([])
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)


def _cannot_run(uid: int, gid: int, folder: Path, manifest: Path) -> str | None:
    """Why a user could not build; None: it can run Python, import epctx and read the manifest."""
    code = "import sys, epctx.worker.process; open(sys.argv[1], 'rb').close()"
    try:
        tried = subprocess.run(
            [sys.executable, "-P", "-c", code, str(manifest)],
            cwd=folder,
            user=uid,
            group=gid,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=60,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return str(error)
    if tried.returncode == 0:
        return None
    return tried.stderr.strip().splitlines()[-1] if tried.stderr.strip() else "it fails"
