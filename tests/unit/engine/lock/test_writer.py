"""The lock of a build, and when it is written."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx import lockfile
from epctx.cache import Cache, locate
from epctx.cache.digests import FreshDigests
from epctx.engine import plan
from epctx.engine.lock import writer
from epctx.engine.lock.writer import keep
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import Plan
from epctx.engine.staleness import Memo, look
from epctx.engine.state import SessionState
from epctx.errors import LockError
from epctx.keys.toolchain import ProviderRecord, Toolchain
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.manifest import ProviderSpec
from epctx.providers.onnxruntime.host import Cpu
from tests.kit import command_line
from tests.kit.projects import Project


def known(project: Project) -> tuple[Plan, tuple[SessionState, ...], Toolchain]:
    """What the cache has of the project's group."""
    cache = Cache(locate(), pytest.fail)
    lookup = Lookup(cache, cache.digests, numbers=True)
    whole = plan.read(project.manifest)
    place = OutputPaths(out=project.folder / "dist", name="m")
    return whole, look(whole.groups[0], lookup, place).sessions, lookup.toolchain


def made(project: Project) -> Lock:
    whole, sessions, toolchain = known(project)
    return writer.make(whole.manifest, [(whole.groups[0], sessions)], toolchain)


def test_a_second_toolchain_of_one_ep_has_a_number(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions of a vendor's SDK in one manifest."""
    project.section("execution_providers")["new"] = {
        "provider": "ReferenceExecutionProvider",
        "options": {"source": "new"},
    }
    project.section("model_groups", "g")["execution_providers"] = ["ref", "new"]
    project.build()
    real = Toolchain.provider

    def provider(self: Toolchain, spec: ProviderSpec) -> ProviderRecord:
        found = real(self, spec)
        version: Mapping[str, str] = {"sdk": "2"} if spec.alias == "new" else {"sdk": "1"}
        return replace(found, toolchain=version)

    whole, sessions, toolchain = known(project)
    monkeypatch.setattr(Toolchain, "provider", provider)
    lock = writer.make(whole.manifest, [(whole.groups[0], sessions)], toolchain)
    name = "ReferenceExecutionProvider"
    assert {n: t.toolchain for n, t in lock.execution_providers.items()} == {
        name: {"sdk": "1"},
        f"{name}#2": {"sdk": "2"},
    }
    eps = lock.groups["default/g"].execution_providers
    assert [ep.provider for ep in eps] == [name, f"{name}#2"]


def test_where_a_real_ep_compiled_is_told_once(project: Project) -> None:
    project.build()
    whole, sessions, toolchain = known(project)
    cpu = Cpu(family="6", flags=("avx", "avx2"), model="143", vendor="GenuineIntel")
    other = replace(cpu, flags=("avx", "avx2", "avx512f"))

    def on(session: SessionState, where: Cpu | None) -> SessionState:
        assert session.compile is not None and session.compile.stored is not None
        result: Any = replace(session.compile.stored.result, cpu=where)
        stored = replace(session.compile.stored, result=result)
        return replace(session, compile=replace(session.compile, stored=stored))

    def lock(*cpus: Cpu | None) -> Lock:
        made = [on(session, where) for session, where in zip(sessions, cpus, strict=True)]
        return writer.make(whole.manifest, [(whole.groups[0], made)], toolchain)

    assert lock(None, None).cpus == {}
    same = lock(cpu, cpu)
    ((name, found),) = same.cpus.items()
    assert found == cpu
    assert {s.cpu for s in same.groups["default/g"].session_groups.values()} == {name}
    assert len(lock(cpu, other).cpus) == 2, "a flag is enough"


def test_a_source_on_another_drive_has_no_drive_in_its_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(path: object, start: object) -> str:
        raise ValueError("path is on mount 'D:', start on mount 'C:'")

    monkeypatch.setattr(os.path, "relpath", refuse)
    assert lockfile.relative(Path("/models/a.onnx"), Path("/p")) == "outside/a.onnx"


def again(project: Project, new: Lock) -> list[str]:
    """Return the notices of writing the lock."""
    told: list[str] = []
    lookup = Lookup(None, FreshDigests(), numbers=True)
    memo = Memo(lookup, OutputPaths(out=project.folder / "dist", name="m"), project.manifest)
    keep(new, project.lock, memo, told.append)
    return told


def test_a_lock_that_is_missing_is_written(project: Project) -> None:
    project.build()
    right, new = project.lock.read_bytes(), lockfile.read(project.lock)
    project.lock.unlink()
    assert again(project, new) == [] and project.lock.read_bytes() == right


@pytest.mark.parametrize(
    "content", ["", "\0", "lock_version: 99\n", "<<<<<<< ours\n{}", "later: 1\n{}"]
)
def test_a_lock_that_cannot_be_read_is_not_replaced(project: Project, content: str) -> None:
    project.build()
    new, content = lockfile.read(project.lock), content.format(project.lock.read_text("utf-8"))
    project.lock.write_text(content, "utf-8")
    with pytest.raises(LockError):
        again(project, new)
    for command in (
        ["build"],
        ["plan"],
        ["plan", "--format", "matrix"],
        ["package"],
        ["reproduce"],
    ):
        done = command_line.inside(*command, project.manifest, cwd=project.folder)
        assert done.returncode == 8 and "or delete it: `epctx build` then" in done.stderr
    assert project.lock.read_text("utf-8") == content and "m.lock.yaml" in done.stderr
    assert ("m.lock.yaml:1:1: " in done.stderr) == content.startswith(("<", "later"))


def test_something_else_replaces_what_was_said_of_this_kind_of_host(project: Project) -> None:
    project.build()
    old = lockfile.read(project.lock)
    project.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    project.build()
    new = lockfile.read(project.lock)
    assert new != old and again(project, old) == []
    assert lockfile.read(project.lock) == old and hosts.kinds(old) == hosts.kinds(new)
