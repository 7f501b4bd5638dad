"""The EPs of the workers: who can take a job, and what its result depends on there.

All that is asked for with the same EPs is carried out by workers of one kind: of them every EP has
one fingerprint, and their CPUs are alike. So a key says where a result comes from, as it does of a
local build.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import codec
from epctx.actions.kinds import CODE
from epctx.cache.digests import FreshDigests
from epctx.error_codes import Code
from epctx.errors import EpctxError, ProviderUnavailable
from epctx.keys.records import ProviderRecord
from epctx.keys.toolchain import Described, Toolchain
from epctx.machines.cluster import Cluster, Lost, Member
from epctx.machines.messages import Answer, decoded, encoded
from epctx.machines.portable import Packing
from epctx.manifest import ProviderSpec
from epctx.providers.onnxruntime import host
from epctx.worker import protocol

_LISTED: Final = 5
"""Workers that a message names."""
Decides = Callable[[ProviderRecord], bool]
"""Whether the lock was made with such an EP."""


class Kind(Struct, frozen=True):
    """What workers have in common that can take jobs of the same EPs."""

    eps: tuple[Described, ...]
    cpu: host.Cpu


class WorkersEps:
    """The EPs of a cluster's workers, each asked for once a worker. Used by many threads.

    Args:
        decides: where workers of one CPU have an EP in several versions.
    """

    def __init__(self, cluster: Cluster, packing: Packing, decides: Decides) -> None:
        self._cluster = cluster
        self._packing = packing
        self._decides = decides
        self._choosing = threading.Lock()
        self._lock = threading.Lock()
        self._asked: dict[tuple[str, bytes], Described | EpctxError] = {}
        self._kinds: dict[bytes, Kind] = {}
        self._matching: dict[tuple[str, bytes], bool] = {}
        self._code = _own_code()

    def described(self, spec: ProviderSpec) -> Described:
        """As `Eps` has it."""
        return self.kind((spec,)).eps[0]

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """As `Eps` has it."""
        return self.kind(specs).cpu

    def kind(self, specs: Sequence[ProviderSpec]) -> Kind:
        """Who takes jobs of these EPs.

        Raises:
            ProviderUnavailable: nobody can, or it depends on who does.
        """
        name = _name(specs)
        with self._choosing:
            if name not in self._kinds:
                self._kinds[name] = self._chosen(specs)
            return self._kinds[name]

    def able(self, specs: Sequence[ProviderSpec]) -> list[Member]:
        """The workers that can take jobs of these EPs now. Raises as `kind`."""
        wanted, name = self.kind(specs), _name(specs)
        members = self._cluster.members()
        new = [member for member in members if (member.address, name) not in self._matching]
        for member, kind in self._found(new, specs) if new else ():
            right = kind == wanted and member.facts.code == self._code
            self._matching[member.address, name] = right
        return [each for each in members if self._matching.get((each.address, name))]

    def _fitting(self) -> list[Member]:
        """The workers on which epctx and its libraries are what they are here."""
        members = sorted(self._cluster.members(), key=lambda each: each.facts.name)
        fitting = [member for member in members if member.facts.code == self._code]
        if not fitting:
            raise _missing("no worker has this epctx", [_unlike(m, self._code) for m in members])
        return fitting

    def _found(
        self, members: Sequence[Member], specs: Sequence[ProviderSpec]
    ) -> list[tuple[Member, Kind | EpctxError]]:
        with ThreadPoolExecutor(max_workers=max(len(members), 1)) as threads:
            kinds = threads.map(lambda member: self._of(member, specs), members)
            return [(m, kind) for m, kind in zip(members, kinds, strict=True) if kind is not None]

    def _of(self, member: Member, specs: Sequence[ProviderSpec]) -> Kind | EpctxError | None:
        """What a worker is for these EPs; None: it is gone meanwhile."""
        eps: list[Described] = []
        for spec in specs:
            try:
                found = self._ask(member, spec)
            except Lost:
                return None
            if isinstance(found, EpctxError):
                return found
            eps.append(found)
        return Kind(tuple(eps), member.facts.cpu)

    def _ask(self, member: Member, spec: ProviderSpec) -> Described | EpctxError:
        name = member.address, _name((spec,))
        with self._lock:
            known = self._asked.get(name)
        if known is None:
            known = self._answer(member, spec)
            with self._lock:
                self._asked[name] = known
        return known

    def _answer(self, member: Member, spec: ProviderSpec) -> Described | EpctxError:
        text = encoded(self._packing.pack(spec).portable)
        number = self._cluster.number()
        try:
            call = self._cluster.call(member.address, "describe", text, number)
            answer = decoded(call.wait(), Answer)
        finally:
            self._cluster.forget(number)
        if answer.failure is not None:
            return protocol.restore(answer.failure, log=Path())
        return codec.decode(bytes(answer.results[0]), Described)

    def _chosen(self, specs: Sequence[ProviderSpec]) -> Kind:
        found = self._found(self._fitting(), specs)
        able = [(member, kind) for member, kind in found if isinstance(kind, Kind)]
        if not able:
            failures = [error for _, error in found if isinstance(error, EpctxError)]
            told = [f"{m.facts.name}: {e.reason}" for m, e in found if isinstance(e, EpctxError)]
            what = " and ".join(dict.fromkeys(spec.provider for spec in specs)) or "jobs"
            error = _missing(f"no worker can take {what}", told)
            if failures and all(type(each) is type(failures[0]) for each in failures):
                error.code = failures[0].code
            raise error
        locked = [each for each in able if all(self._decides(ep.record) for ep in each[1].eps)]
        able = locked or able
        self._refuse_several(able)
        jobs: dict[bytes, int] = {}
        for member, kind in able:
            name = codec.encode(kind)
            jobs[name] = jobs.get(name, 0) + member.facts.jobs
        own = host.cpu()
        return max((kind for _, kind in able), key=lambda k: (k.cpu == own, jobs[codec.encode(k)]))

    def _refuse_several(self, able: Sequence[tuple[Member, Kind]]) -> None:
        """On one kind of host an EP has one fingerprint."""
        seen: dict[bytes, tuple[Member, ProviderRecord]] = {}
        for member, kind in able:
            for ep in kind.eps:
                record = ep.record
                name = codec.encode((record.provider, record.options, record.host))
                other, known = seen.setdefault(name, (member, record))
                if known != record:
                    raise ProviderUnavailable(
                        f"{record.provider} is not the same on all workers",
                        where=f"{other.facts.name} and {member.facts.name}",
                        why=_difference(known, record),
                        remedy="install one version, stop one of them, or build with a lock that "
                        "says which",
                        code=Code.MACHINES,
                    )


def _own_code() -> Mapping[str, Mapping[str, str]]:
    toolchain = Toolchain(FreshDigests())
    return {name: toolchain.of(*code) for name, code in CODE.items()}


def _name(specs: Sequence[ProviderSpec]) -> bytes:
    return codec.encode([(each.provider, each.options, each.path_options) for each in specs])


def _unlike(member: Member, own: Mapping[str, Mapping[str, str]]) -> str:
    """What of epctx and its libraries is not the same on a worker as here."""
    here = {name: text for known in own.values() for name, text in known.items()}
    there = {name: text for known in member.facts.code.values() for name, text in known.items()}
    names = [
        f"{n} {there.get(n)}" for n in sorted(here) if here[n] != there.get(n) and n != "epctx"
    ]
    if not names:
        names = [f"epctx {member.facts.epctx}, of other sources"]
    return f"{member.facts.name}: {', '.join(names)}"


def _difference(one: ProviderRecord, other: ProviderRecord) -> str:
    names = sorted({*one.toolchain, *other.toolchain})
    differ = [n for n in names if one.toolchain.get(n) != other.toolchain.get(n)]
    told = [f"{n}: {one.toolchain.get(n)} and {other.toolchain.get(n)}" for n in differ[:_LISTED]]
    return ", ".join(told) or f"its code: {one.code} and {other.code}"


def _missing(what: str, told: Sequence[str]) -> ProviderUnavailable:
    more = [f"and {len(told) - _LISTED} more"] if len(told) > _LISTED else []
    return ProviderUnavailable(
        what,
        why="; ".join([*told[:_LISTED], *more]) or None,
        remedy="start a worker that has it: `epctx worker`, and `epctx doctor` there",
        code=Code.MACHINES,
    )
