"""What is varied, and what is told where it cannot be."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx import api
from epctx.commands.reproduce import variations
from epctx.commands.reproduce.result import VARIATIONS, Variation
from epctx.commands.reproduce.variations import Circumstances


def obstacles(told: tuple[Variation, ...]) -> dict[str, str | None]:
    return {each.name: each.obstacle for each in told}


def test_each_variation_is_told_and_only_those_asked_for(tmp_path: Path) -> None:
    told, _ = variations.vary(VARIATIONS, folder=tmp_path, jobs=4)
    assert set(obstacles(told)) == set(VARIATIONS)
    told, made = variations.vary(["umask", "time-zone"], folder=tmp_path, jobs=4)
    assert set(obstacles(told)) == {"umask", "time-zone"}
    assert made == Circumstances(
        variables={"TZ": "GMT-14"}, umask=0o077 if os.name != "nt" else None, jobs=4
    )


@pytest.mark.needs("Linux", "libfaketime is for Linux")
def test_time_is_varied_where_libfaketime_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin" / "faketime"
    library = tmp_path / "lib" / "x86_64-linux-gnu" / "faketime" / "libfaketimeMT.so.1"
    for path in (program, library):
        path.parent.mkdir(parents=True)
        path.touch(mode=0o755)
    monkeypatch.setenv("PATH", str(program.parent))
    told, made = variations.vary(["time"], folder=tmp_path, jobs=1)
    assert obstacles(told) == {"time": None}
    assert made.worker_variables["LD_PRELOAD"] == str(library)
    assert not made.variables
    monkeypatch.setattr(variations, "faketime", lambda: None)
    told, made = variations.vary(["time"], folder=tmp_path, jobs=1)
    assert obstacles(told) == {"time": "libfaketime is not installed"}
    assert not made.worker_variables


def test_what_hinders_the_process_is_told(tmp_path: Path) -> None:
    varied, _ = variations.vary(["cores", "umask"], folder=tmp_path, jobs=1)
    told = {e.name: e for e in variations.hindered(varied, {"cores": "there is one"})}
    assert (told["cores"].obstacle, told["cores"].second) == ("there is one", told["cores"].first)
    assert told["umask"].second != told["umask"].first


@pytest.mark.needs("POSIX", "Windows has other users")
def test_who_is_not_root_stays_who_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    wanted = Circumstances(user="nobody")
    found = variations.enter(wanted, folder=tmp_path, manifest=tmp_path / "m")
    assert found == {"user": "only root can become another user"}
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    wanted = Circumstances(user="no-such-user")
    found = variations.enter(wanted, folder=tmp_path, manifest=tmp_path / "m")
    assert found == {"user": "there is no user no-such-user"}


def test_the_help_names_each_variation() -> None:
    words = (api.reproduce.__doc__ or "").replace(",", " ").replace(":", " ").split()
    assert [name for name in VARIATIONS if name not in words] == []
