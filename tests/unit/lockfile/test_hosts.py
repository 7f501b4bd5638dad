"""Locks of several kinds of host: taken apart, put together, read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from epctx import lockfile as locks
from epctx.errors import LockError
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedFile

QNN = "QNNExecutionProvider"
GROUP, WHOLE = "default/llm", "default/whole"


def of(lock: Lock, isa: str, sha256: str = "1", **changes: Any) -> Lock:
    """The lock as if its EP depended on the CPU, with a file that is another on this kind."""
    (group,) = lock.groups.values()
    (session,) = group.session_groups.values()
    file = LockedFile(sha256=sha256 * 64, size=10)
    session = replace(session, outputs={**session.outputs, "prefill_ctx.onnx": file})
    part = replace(lock.compositions[WHOLE].parts["decode"], group="llm")
    whole = replace(
        lock.compositions[WHOLE], outputs={"whole_ctx.onnx": file}, parts={"decode": part}
    )
    return replace(
        lock,
        compositions={WHOLE: whole},
        execution_providers={QNN: replace(lock.execution_providers[QNN], host={"isa": isa})},
        groups={GROUP: replace(group, session_groups={"prefill": session})},
        **changes,
    )


def isas(lock: Lock) -> list[str]:
    return [kind[QNN]["isa"] for kind in hosts.kinds(lock)]


def test_what_depends_on_no_host_is_of_one_kind(lock: Lock) -> None:
    assert hosts.kind(lock) == {} and hosts.kinds(lock) == ({},)
    assert hosts.views(lock) == (lock,)
    assert hosts.lacking(lock, {}) == ()
    assert hosts.added(lock, lock) == lock


def test_each_kind_has_its_own(lock: Lock) -> None:
    one, other = of(lock, "avx2", "1"), of(lock, "avx512", "2")
    both = hosts.added(one, other)
    assert both.lock_version == 2 and sorted(isas(both)) == ["avx2", "avx512"]
    assert hosts.on(both, hosts.kind(one)) == one
    assert hosts.on(both, hosts.kind(other)) == other
    assert hosts.lacking(both, hosts.kind(one)) == ()
    assert hosts.added(other, one) == both, "whichever was first"
    third = hosts.added(both, of(lock, "amx", "3"))
    assert sorted(isas(third)) == ["amx", "avx2", "avx512"]


def test_what_is_built_anew_takes_the_place_of_its_own_kind_only(lock: Lock) -> None:
    one, other = of(lock, "avx2", "1"), of(lock, "avx512", "2")
    both = hosts.added(hosts.added(one, other), again := of(lock, "avx2", "3"))
    assert hosts.on(both, hosts.kind(one)) == again
    assert hosts.on(both, hosts.kind(other)) == other


def test_golden_files_are_of_the_kind_of_host_that_made_them(lock: Lock) -> None:
    golden = {GROUP: {"golden.json": LockedFile(sha256="9" * 64, size=1)}}
    one, other = of(lock, "avx2", golden={}), of(lock, "avx512", "2", golden=golden)
    both = hosts.added(one, other)
    assert both.golden == {}
    assert hosts.on(both, hosts.kind(one)).golden == {}
    assert hosts.on(both, hosts.kind(other)).golden == golden


def test_a_kind_that_is_not_there_has_no_outputs(lock: Lock) -> None:
    both = hosts.added(of(lock, "avx2"), of(lock, "avx512", "2"))
    for known in (both, of(lock, "avx2")):
        here = hosts.kind(of(lock, "amx"))
        assert hosts.lacking(known, here) == (GROUP, WHOLE)
        view = hosts.on(known, here)
        assert hosts.kind(view) == here and set(view.folders) == {GROUP, WHOLE}
        assert not any(view.folders.values())
        assert view.groups[GROUP].session_groups["prefill"].models == ("prefill", "decode")


def test_a_folder_is_held_to_the_facts_of_its_own_eps_alone(lock: Lock) -> None:
    """Of a kind of host that is known by what one EP depends on, not by what another does."""
    one, other = (
        replace(
            each,
            execution_providers={
                **each.execution_providers,
                "Other": replace(lock.execution_providers[QNN], host={"vendor": "A"}),
            },
        )
        for each in (of(lock, "avx2"), of(lock, "avx512", "2"))
    )
    here = {QNN: {"isa": "avx2"}, "Other": {"vendor": "B"}}
    assert hosts.lacking(hosts.added(one, other), here) == ()


CHANGES: Mapping[str, Callable[[Lock], Lock]] = {
    "a source": lambda lock: replace(lock, sources={}),
    "the toolchain": lambda lock: replace(lock, toolchain={"epctx": "0.2.0"}),
    "a setting": lambda lock: replace(
        lock, groups={GROUP: replace(lock.groups[GROUP], optimize="none")}
    ),
    "what depends on the host": lambda lock: replace(
        lock,
        execution_providers={
            **lock.execution_providers,
            "Other": replace(lock.execution_providers[QNN], host={"isa": "avx2"}, toolchain={}),
        },
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_others_stay_only_while_all_that_they_were_made_of_is_the_same(
    change: str, lock: Lock
) -> None:
    both = hosts.added(of(lock, "avx2"), of(lock, "avx512", "2"))
    for isa in ("avx2", "amx"):
        new = CHANGES[change](of(lock, isa))
        assert hosts.added(both, new) == new


def test_code_within_a_version_matters_if_bytes_of_the_same_kind_do(lock: Lock) -> None:
    both = hosts.added(of(lock, "avx2"), of(lock, "avx512", "2"))
    code = {**lock.toolchain, "epctx/compile": "blake3:0"}
    assert len(isas(hosts.added(both, of(lock, "avx2", toolchain=code)))) == 2
    assert len(isas(hosts.added(both, of(lock, "amx", "3", toolchain=code)))) == 3
    assert isas(hosts.added(both, of(lock, "avx2", "3", toolchain=code))) == ["avx2"]


def test_what_is_written_is_read(lock: Lock) -> None:
    both = hosts.added(of(lock, "avx2"), of(lock, "avx512", "2"))
    assert locks.parse(locks.text(both).encode(), where="l") == both
    other = replace(lock.groups[GROUP].session_groups["prefill"], key=f"blake3:{'7' * 64}")
    first = next(iter(both.hosts))
    entry = replace(both.hosts[first], groups={GROUP: {"prefill": other}})
    assert "7" * 64 in locks.action_names(replace(both, hosts={**both.hosts, first: entry}))


def renamed(document: dict[str, Any], name: str) -> None:
    document["hosts"]["host-0"] = document["hosts"].pop(name)


EDITS: Mapping[str, tuple[Callable[[dict[str, Any], str], object], str]] = {
    "another name": (renamed, "do not match its name"),
    "no session group": (
        lambda d, n: d["hosts"][n]["groups"][GROUP].clear(),
        "differ in their groups",
    ),
    "an unknown group": (
        lambda d, n: d["hosts"][n]["groups"].update({"default/x": {}}),
        "names 'default/x', which the lock does not have",
    ),
    "an unknown EP": (lambda d, n: d["execution_providers"].pop(QNN), "does not have"),
    "no digest": (
        lambda d, n: d["hosts"][n]["compositions"][WHOLE]["whole_ctx.onnx"].update(sha256="../x"),
        "is not a digest",
    ),
    "no hosts": (lambda d, n: d.pop("hosts"), "lock_version"),
    "version 1": (lambda d, n: d.update(lock_version=1), "lock_version"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_what_anybody_may_have_written_is_no_lock(edit: str, lock: Lock) -> None:
    both = hosts.added(of(lock, "avx2"), of(lock, "avx512", "2"))
    document = msgspec.to_builtins(both)
    change, told = EDITS[edit]
    change(document, sorted(document["hosts"])[0])
    with pytest.raises(LockError, match=told):
        locks.parse(msgspec.json.encode(document), where="l")


def test_facts_in_words() -> None:
    long = {"OV": {"vendor": "A", "instructions": "a b c d e f g h"}}
    assert hosts.words(long) == "OV: vendor: A; OV: instructions: 8 of them"
    less = {"OV": {"vendor": "A", "instructions": "a b c d e f h i"}}
    assert hosts.words(less, beside=long) == "OV: instructions: 8 of them, +i -g"
    assert hosts.words({}) == "no facts that bytes depend on"
