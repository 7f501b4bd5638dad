"""Variations between two builds, after reproducible-builds.org's reprotest."""

from __future__ import annotations

import ctypes
import os
import shutil
import site
import socket
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from epctx.commands.reproduce.result import Variation, VariationName
from epctx.providers.onnxruntime import host

if sys.platform != "win32":
    import pwd

_NEW_UTS = 0x04000000
"""linux/sched.h: CLONE_NEWUTS."""


class Circumstances(Struct, frozen=True, kw_only=True):
    """Circumstances that a build takes on.

    Attributes:
        variables: environment variables of the build and of its workers, which otherwise have a
            clean environment.
        worker_variables: environment variables of the workers only.
        umask: file mode mask; None to leave it unchanged. The same applies to `user` and
            `host_name`.
        one_core: run the build and its workers on one core.
        user: user who runs the build.
        host_name: name of the host.
        jobs: number of session groups at a time.
        elsewhere: build in a folder at another path.
        files_reversed: write the sources in reverse order.
        files_aged: date the sources soon after 1970.
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


def enter(circumstances: Circumstances, *, folder: Path, manifest: Path) -> dict[str, str]:
    """Take on circumstances; return the reasons for those that are impossible, by variation.

    The process must have only one thread.

    Args:
        wanted: circumstances to take on; `variables` are set already.
        folder: folder whose owner becomes the user.
        manifest: file that the user must be able to read.
    """
    obstacles: dict[str, str] = {}
    if circumstances.umask is not None:
        os.umask(circumstances.umask)
    if circumstances.one_core:
        _keep_on_one_core(obstacles)
    if circumstances.host_name is not None:
        _rename_host(circumstances.host_name, obstacles)
    if circumstances.user is not None:
        _become(circumstances.user, folder, manifest, obstacles)
    return obstacles


def _keep_on_one_core(obstacles: dict[str, str]) -> None:
    cores = host.cores()
    if len(cores) < 2:
        obstacles["cores"] = (
            "this system cannot bind a process to cores"
            if not cores
            else "there is only one core here"
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
    """Reason why a user cannot build; None if the user can run Python and read the manifest."""
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


USER = "nobody"
HOST_NAME = "another-host"
_LOCALES = ("tr_TR.UTF-8", "fr_CH.UTF-8", "de_DE.UTF-8", "et_EE.UTF-8", "POSIX")
"""The first installed locale is used. Turkish has its own lower-case I; the next write 1,5."""
_TIME = "+398d"
_FAKETIME = "libfaketimeMT.so.1"
"""Library of libfaketime for programs with threads."""


def vary(
    names: Collection[VariationName], *, folder: Path, jobs: int
) -> tuple[tuple[Variation, ...], Circumstances]:
    """Return the requested variations, and the circumstances of the second build.

    Args:
        names: variations to apply.
        folder: folder of the build, with subfolders for the home and for temporary files.
        jobs: number of jobs of the first build.
    """
    variables: dict[str, str] = {}
    variations: list[Variation] = []
    for name, first, second, additions in _variables(folder):
        if name in names:
            variations.append(Variation(name=name, first=first, second=second))
            variables |= additions
    variations += [
        Variation(name=name, first=first, second=second)
        for name, (first, second) in _other_variations(jobs).items()
        if name in names
    ]
    circumstances = Circumstances(
        variables=variables,
        worker_variables=_faked(faketime()) if "time" in names else {},
        umask=0o077 if "umask" in names and sys.platform != "win32" else None,
        one_core="cores" in names,
        user=USER if "user" in names else None,
        host_name=HOST_NAME if "host-name" in names else None,
        jobs=(1 if jobs > 1 else 2) if "jobs" in names else jobs,
        files_reversed="file-order" in names,
        files_aged="file-times" in names,
        elsewhere="path" in names,
    )
    obstacles: dict[str, str] = {} if sys.platform != "win32" else {"umask": "not on Windows"}
    if faketime() is None:
        obstacles["time"] = "libfaketime is not installed"
    return hindered(variations, obstacles), circumstances


def hindered(
    variations: Iterable[Variation], obstacles: Mapping[str, str]
) -> tuple[Variation, ...]:
    """Add the obstacles to the variations that could not be applied."""
    return tuple(
        replace(each, second=each.first, obstacle=obstacles[each.name])
        if each.name in obstacles
        else each
        for each in variations
    )


def _variables(folder: Path) -> Iterator[tuple[VariationName, str, str, Mapping[str, str]]]:
    """Variations by environment variables: name, first value, second value, variables."""
    home, temporary = folder / "home", folder / "temporary"
    captured = {
        "CAPTURE_ENVIRONMENT": "i_capture_the_environment",
        "USER": "another", "LOGNAME": "another", "USERNAME": "another",
        "TMPDIR": str(temporary), "TEMP": str(temporary), "TMP": str(temporary),
    }  # fmt: skip
    yield "environment", "as it is", ", ".join(captured), captured
    path = os.environ.get("PATH", os.defpath)
    longer = {"PATH": f"{path}{os.pathsep}{folder / 'i_capture_the_path'}"}
    yield "exec-path", "PATH", "PATH and one more folder", longer
    homes = ("HOME", "USERPROFILE", "APPDATA", "LOCALAPPDATA")
    home_variables = {name: str(home) for name in homes} | _user_site()
    first = os.environ.get("HOME") or os.environ.get("USERPROFILE") or "none"
    yield "home", first, "a new folder", home_variables
    chosen = _locale()
    languages = {"LC_ALL": chosen, "LANG": chosen, "LANGUAGE": chosen.partition(".")[0]}
    yield "locale", "C.UTF-8", chosen, languages
    yield "time-zone", "UTC", "GMT-14", {"TZ": "GMT-14"}
    yield "hash-seed", "0", "4242", {"PYTHONHASHSEED": "4242"}


def _other_variations(jobs: int) -> dict[VariationName, tuple[str, str]]:
    """All other variations: first and second value by name."""
    return {
        "path": ("a folder", "another, deeper folder with a blank in its name"),
        "time": ("now", f"now {_TIME}, in the workers"),
        "umask": ("as it is", "077"),
        "file-order": ("written in order", "written in reverse order"),
        "file-times": ("now", "1971"),
        "cores": ("all", "one"),
        "jobs": (str(jobs), "1" if jobs > 1 else "2"),
        "user": ("this user", USER),
        "host-name": ("as it is", HOST_NAME),
    }


def _user_site() -> dict[str, str]:
    """Keep packages installed for the user importable when HOME changes."""
    return {"PYTHONUSERBASE": site.getuserbase()} if site.ENABLE_USER_SITE else {}


def _locale() -> str:
    """Unusual locale that is installed, else POSIX."""
    try:
        printed = subprocess.run(["locale", "-a"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return _LOCALES[-1]
    # `locale -a` writes tr_TR.utf8.
    installed = {
        line.strip().lower().replace("utf8", "utf-8") for line in printed.stdout.splitlines()
    }
    return next((name for name in _LOCALES if name.lower() in installed), _LOCALES[-1])


def faketime() -> Path | None:
    """Return the library that gives a process another time; None if it is missing."""
    if sys.platform != "linux":
        return None
    prefixes = [Path("/usr"), Path("/usr/local")]
    program = shutil.which("faketime")
    if program is not None:
        prefixes.insert(0, Path(program).resolve().parent.parent)
    for prefix in prefixes:
        for pattern in (f"lib*/faketime/{_FAKETIME}", f"lib/*/faketime/{_FAKETIME}"):
            for library in sorted(prefix.glob(pattern)):
                return library
    return None


def _faked(library: Path | None) -> dict[str, str]:
    """Variables that fake the date, but not durations or the modification times of files.

    Only for workers, which produce all bytes. libfaketime 0.9.10 breaks Python's `time.sleep`,
    which the waiting process needs.
    """
    if library is None:
        return {}
    return {
        "LD_PRELOAD": str(library),
        "FAKETIME": _TIME,
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
