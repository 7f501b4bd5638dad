"""Records of the cache may be lost one by one: by gc, in a shared cache, by a kill between two."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

import pytest

from epctx.cache import locate
from tests.kit.projects import Project, ran

pytestmark = pytest.mark.usefixtures("jobs_inline")


def records(project: Project) -> list[Path]:
    """Build the project from scratch; return the records of its actions in the cache."""
    del project.section("models")["b"]
    project.section("model_groups", "g")["models"] = ["a"]
    project.build()
    return sorted(path for path in (locate().root / "actions").rglob("*") if path.is_file())


def losses(records: Sequence[Path]) -> Iterable[tuple[Path, ...]]:
    """Yield each record, and each two."""
    yield from combinations(records, 1)
    yield from combinations(records, 2)


def build_after(project: Project, lost: Iterable[tuple[Path, ...]]) -> set[str]:
    """Build after each loss, to the same outputs; return the kinds of actions that ran again."""
    files, lock, kinds = project.files(), project.lock.read_bytes(), set()
    for paths in lost:
        contents = {path: path.read_bytes() for path in paths}
        for path in paths:
            path.unlink()
        kinds |= {kind for kind, _ in ran(project.build())}
        assert project.files() == files and project.lock.read_bytes() == lock
        for path, content in contents.items():
            path.write_bytes(content)
    return kinds


def test_a_build_ends_whichever_records_are_lost(project: Project) -> None:
    every = records(project)
    kinds = build_after(project, losses(every))
    assert kinds == {"optimize", "compile", "verify"}


@pytest.mark.soak
def test_a_build_ends_whichever_many_records_are_lost(project: Project) -> None:
    every, choice = records(project), random.Random(7)
    many = [tuple(choice.sample(every, choice.randint(1, len(every)))) for _ in range(200)]
    build_after(project, many)
