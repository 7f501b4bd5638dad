"""Groups of which nothing has changed: found as a look would find them, or looked at."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epctx import lockfile
from epctx.cache import Cache, locate
from epctx.engine import plan, unchanged
from epctx.engine.lookup import Lookup
from epctx.engine.noop import LASTING, Watched
from epctx.engine.output.place import Place
from epctx.engine.state import GroupState
from epctx.engine.unchanged import Unchanged
from epctx.engine.up_to_date import assess
from epctx.files import identity
from tests.kit.projects import Project


class Process:
    """A new process.

    Attributes:
        looked: how many groups it looked at properly.
    """

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        cache = Cache(locate(), pytest.fail)
        place = Place(out=project.folder / "dist", name="m")
        lookup = Lookup(cache, cache.digests, numbers=options.get("numbers", True))
        self.looked = 0
        self.watched = Watched()
        self.unchanged = Unchanged(cache.records, lookup, place, project.manifest, self.watched)
        (planned,) = plan.read(project.manifest).groups

        def look(*arguments: Any) -> GroupState:
            self.looked += 1
            return assess(*arguments)

        monkeypatch.setattr(unchanged, "assess", look)
        self.found = self.unchanged.assess(planned)
        self.unchanged.save()


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How many seconds later than now it is: all files were written long enough ago."""
    now, seconds = time.time, [10.0]
    monkeypatch.setattr(time, "time", lambda: now() + seconds[0])
    monkeypatch.setattr(identity, "tells", lambda path, text: True)
    return seconds


@pytest.fixture
def remembered(project: Project, later: list[float], monkeypatch: pytest.MonkeyPatch) -> Project:
    """The project, built, and found up to date once."""
    project.build()
    assert Process(project, monkeypatch).looked == 1
    return project


def test_what_is_remembered_is_what_a_look_finds(
    remembered: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = Process(remembered, monkeypatch)
    assert again.looked == 0
    assert again.found.up_to_date
    looked = assess(again.found.planned, *_arguments(again))
    assert again.found.files == looked.files
    assert again.found.report == looked.report
    for found, expected in zip(again.found.sessions, looked.sessions, strict=True):
        assert (found.session, found.key) == (expected.session, expected.key)
        assert [m.key for m in found.models] == [m.key for m in expected.models]
        assert [m.found for m in found.models] == [m.found for m in expected.models]
        assert found.action is not None and expected.action is not None
        assert found.action.result == expected.action.result


def _arguments(process: Process) -> tuple[Lookup, Place]:
    known = process.unchanged
    return known._lookup, known._place


def test_all_that_was_looked_at_is_told_to_who_watches(
    remembered: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamps = Process(remembered, monkeypatch).watched._stamps
    group = remembered.published / "g"
    for path in (
        remembered.folder / "a.onnx",
        remembered.folder / "b.data",
        group,
        *group.iterdir(),
    ):
        assert str(path) in stamps


def other_settings(project: Project) -> None:
    project.section("model_groups", "g", "partition")["min_nodes"] = 2
    project.write()


CHANGES: dict[str, Callable[[Project], object]] = {
    "a model": lambda p: (p.folder / "a.onnx").touch(),
    "its data": lambda p: (p.folder / "b.data").touch(),
    "an output": lambda p: (p.published / "g" / "a_ctx.onnx").write_bytes(b"x"),
    "an output is gone": lambda p: (p.published / "g" / "SHA256SUMS").unlink(),
    "another file": lambda p: (p.published / "g" / "more").touch(),
    "the folder is another": lambda p: (p.published / "g").rename(p.published / "h"),
    "the manifest": other_settings,
    "the cache has nothing of it": lambda p: shutil.rmtree(locate().root / "actions"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_group_of_which_anything_changed_is_looked_at(
    change: str, remembered: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    CHANGES[change](remembered)
    assert Process(remembered, monkeypatch).looked == 1


def test_another_kind_of_build_looks(remembered: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Process(remembered, monkeypatch, numbers=False).looked == 1
    monkeypatch.setattr(unchanged, "__version__", "another")
    assert Process(remembered, monkeypatch).looked == 1


def test_gc_sees_now_and_then_that_results_are_of_use(
    remembered: Project, later: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    later[0] += LASTING - 100
    assert Process(remembered, monkeypatch).looked == 0
    later[0] += 200
    assert Process(remembered, monkeypatch).looked == 1


def test_what_was_just_written_is_not_remembered(
    project: Project, later: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    later[0] = 0
    project.build()
    assert Process(project, monkeypatch).looked == 1
    assert Process(project, monkeypatch).looked == 1


def test_what_was_written_while_it_was_looked_at_is_not_remembered(
    project: Project, later: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    project.build()
    look = assess

    def written(*arguments: Any) -> GroupState:
        found = look(*arguments)
        os.utime(project.folder / "a.onnx", (time.time(), time.time()))
        later[0] += 10
        return found

    monkeypatch.setattr(f"{__name__}.assess", written)
    Process(project, monkeypatch)
    monkeypatch.setattr(f"{__name__}.assess", look)
    later[0] += 10
    assert Process(project, monkeypatch).looked == 1


def test_a_lock_is_read_once(remembered: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = lockfile.read(remembered.lock)
    first = Process(remembered, monkeypatch).unchanged
    assert not first.is_written(lock, remembered.lock)
    first.written(lock, remembered.lock)
    first.save()
    second = Process(remembered, monkeypatch).unchanged
    assert second.is_written(lock, remembered.lock)
    remembered.lock.touch()
    assert not second.is_written(lock, remembered.lock)
    assert not second.is_written(lock, Path("elsewhere"))
