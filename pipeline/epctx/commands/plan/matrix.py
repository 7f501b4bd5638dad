"""A plan as the matrix of a CI system: which group is built where (`epctx plan --format matrix`).

No EP is asked, and none needs to be installed: what a runner must be says the option schema of the
EP, and the lock, where there is one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from epctx import lockfile
from epctx.engine.plan import Plan, PlannedGroup
from epctx.errors import LockError
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock
from epctx.parsing.schema import providers

ANY = "any"
MOST = 200
"""Jobs that a matrix of GitLab may have; GitHub takes 256."""
_LIBRARIES = {".so": "linux", ".dll": "windows", ".dylib": "macos"}


class Shard(Struct, frozen=True, kw_only=True):
    """Groups that one job builds. All is text, as GitLab's matrices want; several with commas.

    Attributes:
        name: of the job.
        only: what `epctx build --only` takes.
        os: linux, windows, macos, several where any of them will do, or `any`.
        machine: x86_64, aarch64, likewise.
        cpu: what the CPU must be, as `GenuineIntel family 6 model 85`; several with ` or `.
        eps: ONNX Runtime's names of the EPs.
        extras: of epctx, which install them.
    """

    name: str
    group: str
    target: str
    only: str
    os: str
    machine: str
    cpu: str
    eps: str
    extras: str


class Matrix(Struct, frozen=True, kw_only=True):
    """A matrix, as GitHub's `fromJSON` takes it; GitLab takes the list in `include`."""

    include: tuple[Shard, ...]


def matrix(plan: Plan, *, shards: int = 0) -> Matrix:
    """The matrix of a plan's groups, in manifest order.

    Compositions have no shard: the job that gathers joins them from what the others have built.

    Args:
        shards: at most so many, where so few do: groups that want the same host share; 0: one a
            group.
    """
    lock = _lock(plan.manifest.path)
    known = {group.label: _shard([group], lock) for group in plan.groups}
    alike: dict[tuple[str, ...], list[PlannedGroup]] = {}
    for group in plan.groups:
        each = known[group.label]
        wants = (each.os, each.machine, each.cpu, each.eps, each.extras)
        alike.setdefault(wants, []).append(group)
    if not shards:
        return Matrix(include=tuple(known.values()))
    parts = _shares([len(groups) for groups in alike.values()], shards)
    dealt = zip(alike.values(), parts, strict=True)
    made = [_shard(groups[n::count], lock) for groups, count in dealt for n in range(count)]
    return Matrix(include=tuple(made))


def _shares(sizes: Sequence[int], most: int) -> list[int]:
    """How many shards each heap of groups gets: one, and what is left where they are fullest."""
    given = [1 for _ in sizes]
    while sum(given) < min(most, sum(sizes)):
        fullest = max(range(len(sizes)), key=lambda n: sizes[n] / given[n])
        given[fullest] += 1
    return given


def _shard(groups: Sequence[PlannedGroup], lock: Lock | None) -> Shard:
    first = groups[0]
    names = list(dict.fromkeys(spec.provider for spec in first.group.execution_providers))
    known = [_known(name) for name in names]
    facts = [] if lock is None else [kind for kind in hosts.kinds(lock) if kind]
    locked = {n: [kind[n] for kind in facts if n in kind] for n in names}
    vendors = [each.cpu for each in known if each.cpu]
    cpus = [_cpu(fact) for name in names for fact in locked[name]] or vendors
    systems = _common([each.systems for each in known])
    return Shard(
        name=first.label if len(groups) == 1 else f"{first.label} and {len(groups) - 1} more",
        group=_list(group.group.name for group in groups),
        target=_list(group.target for group in groups),
        only=_list(group.label for group in groups),
        os=_list(_of_lock(lock, names) or systems) or ANY,
        machine=_list(_common([each.machines for each in known])) or ANY,
        cpu=" or ".join(dict.fromkeys(filter(None, cpus))) or ANY,
        eps=_list(names),
        extras=_list(each.extra for each in known if each.extra),
    )


def _known(name: str) -> providers.CompilesOn:
    schema = providers.find(name)
    return providers.CompilesOn() if schema is None else schema.knowledge.compiles_on


def _common(each: Iterable[Sequence[str]]) -> list[str]:
    """What all that say something agree on, in the order of the first."""
    said = [names for names in each if names]
    return [name for name in said[0] if all(name in names for names in said)] if said else []


def _of_lock(lock: Lock | None, names: Iterable[str]) -> list[str]:
    """The system whose libraries the lock has of these EPs: its toolchain is of no other."""
    if lock is None:
        return []
    entries = lock.execution_providers
    labels = [
        label
        for key, entry in entries.items()
        if key.partition("#")[0] in names
        for label in entry.toolchain
    ]
    return sorted(
        {_LIBRARIES[end] for label in labels for end in Path(label).suffixes if end in _LIBRARIES}
    )


def _cpu(facts: Mapping[str, str]) -> str:
    vendor = facts.get("cpu vendor", "")
    said = [
        f"{name} {facts[f'cpu {name}']}" for name in ("family", "model") if f"cpu {name}" in facts
    ]
    return " ".join(filter(None, [vendor, *said]))


def _list(names: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(names))


def _lock(manifest: Path) -> Lock | None:
    try:
        return lockfile.read(lockfile.place(manifest))
    except LockError:  # there is none, or it cannot be read: the build will say so
        return None
