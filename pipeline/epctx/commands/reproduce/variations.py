"""What is varied between two builds, after reproducible-builds.org's reprotest."""

from __future__ import annotations

import os
import shutil
import site
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path

from msgspec.structs import replace

from epctx.commands.reproduce.circumstances import Circumstances
from epctx.commands.reproduce.result import Variation, VariationName

USER = "nobody"
HOST_NAME = "another-host"
_LOCALES = ("tr_TR.UTF-8", "fr_CH.UTF-8", "de_DE.UTF-8", "et_EE.UTF-8", "POSIX")
"""The first that is installed; Turkish lower-cases I otherwise, the next write 1,5."""
_TIME = "+398d"
_FAKETIME = "libfaketimeMT.so.1"
"""Of libfaketime, the one for programs with threads."""


def vary(
    names: Collection[VariationName], *, folder: Path, jobs: int
) -> tuple[tuple[Variation, ...], Circumstances]:
    """Each variation that is asked for, and the second build, where the first one is as it is.

    Args:
        names: what is to be varied.
        folder: of the build; a home and a folder for temporary files may be made in it.
        jobs: of the first build.
    """
    variables: dict[str, str] = {}
    told: list[Variation] = []
    for name, first, second, own in _variables(folder):
        if name in names:
            told.append(Variation(name=name, first=first, second=second))
            variables |= own
    told += [
        Variation(name=name, first=first, second=second)
        for name, (first, second) in _others(jobs).items()
        if name in names
    ]
    made = Circumstances(
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
    return hindered(told, obstacles), made


def hindered(told: Iterable[Variation], obstacles: Mapping[str, str]) -> tuple[Variation, ...]:
    """The variations, with what kept the build from some of them."""
    return tuple(
        replace(each, second=each.first, obstacle=obstacles[each.name])
        if each.name in obstacles
        else each
        for each in told
    )


def _variables(folder: Path) -> Iterator[tuple[VariationName, str, str, Mapping[str, str]]]:
    """Variations that are variables of the environment: what it was, what it is, the variables."""
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
    own = {name: str(home) for name in homes} | _user_site()
    first = os.environ.get("HOME") or os.environ.get("USERPROFILE") or "none"
    yield "home", first, "a new folder", own
    chosen = _locale()
    languages = {"LC_ALL": chosen, "LANG": chosen, "LANGUAGE": chosen.partition(".")[0]}
    yield "locale", "C.UTF-8", chosen, languages
    yield "time-zone", "UTC", "GMT-14", {"TZ": "GMT-14"}
    yield "hash-seed", "0", "4242", {"PYTHONHASHSEED": "4242"}


def _others(jobs: int) -> dict[VariationName, tuple[str, str]]:
    """All other variations: what it was, what it is."""
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
    """Packages that are installed for the user are found by HOME, unless this says where."""
    return {"PYTHONUSERBASE": site.getuserbase()} if site.ENABLE_USER_SITE else {}


def _locale() -> str:
    """A locale that is installed and is not the usual one."""
    try:
        printed = subprocess.run(["locale", "-a"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return _LOCALES[-1]
    # `locale -a` writes tr_TR.utf8.
    known = {line.strip().lower().replace("utf8", "utf-8") for line in printed.stdout.splitlines()}
    return next((name for name in _LOCALES if name.lower() in known), _LOCALES[-1])


def faketime() -> Path | None:
    """The library that gives a process another time; None: it is not here."""
    if sys.platform != "linux":
        return None
    prefixes = [Path("/usr"), Path("/usr/local")]
    program = shutil.which("faketime")
    if program is not None:
        prefixes.insert(0, Path(program).resolve().parent.parent)
    for prefix in prefixes:
        for pattern in (f"lib*/faketime/{_FAKETIME}", f"lib/*/faketime/{_FAKETIME}"):
            for found in sorted(prefix.glob(pattern)):
                return found
    return None


def _faked(library: Path | None) -> dict[str, str]:
    """Another date; how long things take, and when files were changed, stays true.

    For workers, which make all bytes: libfaketime 0.9.10 breaks Python's own `time.sleep`, which
    the process that waits for them needs.
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
