"""A lock is written where it says something else, and what it says of others stays."""

from __future__ import annotations

import pytest

from epctx import lockfile
from epctx.cache.digests import FreshDigests
from epctx.engine.lock.writer import keep
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.staleness import Memo
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from tests.kit.projects import Project


def again(project: Project, new: Lock) -> list[str]:
    """What is told while it is kept."""
    told: list[str] = []
    lookup = Lookup(None, FreshDigests(), numbers=True)
    memo = Memo(lookup, OutputPaths(out=project.folder / "dist", name="m"), project.manifest)
    keep(new, project.lock, memo, told.append)
    return told


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"schema_version: 99\n"])
def test_what_is_none_is_replaced(project: Project, content: bytes | None) -> None:
    project.build()
    right = project.lock.read_bytes()
    new = lockfile.read(project.lock)
    project.lock.unlink()
    if content is not None:
        project.lock.write_bytes(content)
    assert again(project, new) == []
    assert project.lock.read_bytes() == right


def test_something_else_replaces_what_was_said_of_this_kind_of_host(project: Project) -> None:
    project.build()
    old = lockfile.read(project.lock)
    project.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    project.build()
    new = lockfile.read(project.lock)
    assert new != old and again(project, old) == []
    assert lockfile.read(project.lock) == old and hosts.kinds(old) == hosts.kinds(new)
