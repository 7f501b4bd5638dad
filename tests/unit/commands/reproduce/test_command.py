"""What the lock beside a manifest says of a build of it."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.reproduce import command
from epctx.engine.plan import Plan
from epctx.lockfile import hosts
from epctx.lockfile.types import (
    Lock,
    LockedGroup,
    LockedProvider,
    LockedToolchain,
)
from epctx.manifest import Manifest, PartitionSettings

PLAN = Plan(manifest=Manifest(name="m", path=Path("m.yaml"), targets=()), groups=(), whole=True)
EP = "OpenVINOExecutionProvider"


def lock(*, isa: str = "avx2", version: str = "1", code: str = "1") -> Lock:
    provider = LockedToolchain(
        code=f"epctx blake3:{code}", host={"isa": isa}, toolchain={"openvino": version}
    )
    group = LockedGroup(
        embed_mode=0,
        execution_providers=(LockedProvider(options={}, provider=EP),),
        external_initializers=None,
        models={},
        node_name_prefix="",
        optimize="basic",
        partition=PartitionSettings(
            exclude_nodes=(),
            exclude_op_types=(),
            max_partitions=None,
            min_nodes=1,
            require_coverage=None,
        ),
        passes=(),
        passes_of_others={},
        session_groups={},
        session_options={},
    )
    eps = {EP: provider}
    return Lock(
        name="m", toolchain={}, sources={}, execution_providers=eps, groups={"default/g": group}
    )


def output(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a file of the locks were another; what they are made of is tested with the lock."""
    from epctx.lockfile import differences

    told = differences.Difference(kind="output", where="default/g/m.bin", what="is another")
    monkeypatch.setattr(differences, "_outputs", lambda old, new: [told])


def test_without_a_lock_nothing_is_said() -> None:
    assert command.judged(None, lock(), PLAN) == ("no lock", ())


def test_another_toolchain_that_gives_the_same_bytes() -> None:
    verdict, told = command.judged(lock(), lock(version="2"), PLAN)
    assert verdict == "the same outputs"
    assert [each.kind for each in told] == ["toolchain"]


def test_another_toolchain_that_gives_other_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    output(monkeypatch)
    verdict, told = command.judged(lock(), lock(version="2"), PLAN)
    assert verdict == "differs"
    assert [each.kind for each in told] == ["toolchain", "output"]


def test_another_cpu_is_another_host_and_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    output(monkeypatch)
    verdict, told = command.judged(lock(), lock(isa="avx512"), PLAN)
    assert verdict == "made on another host"
    assert 'made on another host: isa: "avx2" is now "avx512"' in str(told[0])
    old = replace(lock(), name="m")
    assert command.judged(old, lock(isa="avx512", version="2"), PLAN)[0] == "differs"


def test_a_lock_of_several_kinds_of_host_is_asked_for_this_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = hosts.added(lock(), lock(isa="avx512"))
    assert len(hosts.kinds(both)) == 2
    for isa in ("avx2", "avx512"):
        assert command.judged(both, lock(isa=isa), PLAN) == ("the same", ())
    output(monkeypatch)
    assert command.judged(both, lock(isa="avx2"), PLAN)[0] == "differs"
    assert command.judged(both, lock(isa="amx"), PLAN)[0] == "made on another host"
