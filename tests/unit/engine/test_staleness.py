"""Groups are known by a look, or by their record while nothing has changed since."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epctx.cache import Cache, locate
from epctx.cache.contents import Records
from epctx.engine import plan, staleness
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.staleness import LASTING, Memo, look
from epctx.engine.state import GroupState
from epctx.files import identity
from epctx.files.digest import Digest, of_bytes
from tests.kit.projects import Project


class Process:
    """A new process.

    Attributes:
        looked: how many groups it looked at properly.
    """

    def __init__(self, project: Project, monkeypatch: pytest.MonkeyPatch, **options: Any) -> None:
        cache = Cache(locate(), pytest.fail)
        place = OutputPaths(out=project.folder / "dist", name="m")
        lookup = Lookup(cache, cache.digests, numbers=options.get("numbers", True))
        self.looked = 0
        self.memo = Memo(lookup, place, project.manifest)
        self.arguments = (lookup, place)
        (planned,) = plan.read(project.manifest).groups

        def noted(*arguments: Any) -> GroupState:
            self.looked += 1
            return look(*arguments)

        monkeypatch.setattr(staleness, "look", noted)
        self.found = self.memo.state(planned)
        self.memo.save()


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
    before = look

    def written(*arguments: Any) -> GroupState:
        found = before(*arguments)
        os.utime(project.folder / "a.onnx", (time.time(), time.time()))
        later[0] += 10
        return found

    monkeypatch.setattr(f"{__name__}.look", written)
    Process(project, monkeypatch)
    monkeypatch.setattr(f"{__name__}.look", before)
    later[0] += 10
    assert Process(project, monkeypatch).looked == 1


# --- a look ---


def assessed(project: Project, *, numbers: bool = True) -> GroupState:
    """Look at the group as a new process would."""
    cache = Cache(locate(), pytest.fail)
    place = OutputPaths(out=project.folder / "dist", name="m")
    (planned,) = plan.read(project.manifest).groups
    return look(planned, Lookup(cache, cache.digests, numbers=numbers), place)


EDITS: dict[str, tuple[Callable[[Path], object], str]] = {
    "missing": (lambda g: (g / "a_ctx.onnx").unlink(), "a_ctx.onnx is missing"),
    "changed": (lambda g: (g / "a_ctx.onnx").write_bytes(b"x"), "a_ctx.onnx was changed"),
    "added": (lambda g: (g / "x").touch(), "x does not belong there"),
    "no sums": (lambda g: (g / "SHA256SUMS").unlink(), "SHA256SUMS is missing"),
    "renamed": (lambda g: g.rename(g.with_name("other")), "it is not published"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_was_edited_in_the_outputs_is_told_and_only_published_again(
    edit: str, project: Project
) -> None:
    project.build()
    change, told = EDITS[edit]
    change(project.published / "g")
    found = assessed(project)
    assert found.published == told
    assert not found.up_to_date and found.complete, "nothing is to be carried out"


def test_what_was_built_without_numbers_is_not_verified_with_them(project: Project) -> None:
    project.build(verify=False)
    assert assessed(project, numbers=False).up_to_date
    found = assessed(project)
    assert found.published is None and not found.complete and not found.up_to_date


# --- the last keys ---


OLD, NEW = of_bytes(b"old"), of_bytes(b"new")


def memo(cache: Cache, manifest: str = "/m.yaml") -> Memo:
    lookup = Lookup(cache, cache.digests, numbers=True)
    return Memo(lookup, OutputPaths(out=Path("/dist"), name="m"), Path(manifest))


def note(known: Memo, key: Digest) -> None:
    """As a build does with one action."""
    known.note_key("g@x", "compile", "a", key)
    known.save()


def test_the_same_key_is_not_written_again(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A no-op build writes nothing: the cache may be read-only, or on a network."""
    known = memo(cache)
    note(known, OLD)
    monkeypatch.setattr(Records, "write", None)
    note(known, OLD)
    with pytest.raises(TypeError):
        note(known, NEW)
