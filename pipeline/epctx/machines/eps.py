"""The EPs of the workers: who can take a job, and what its result depends on there.

All that is asked for with the same EPs is carried out by workers of one kind: of them every EP has
one fingerprint, and their CPUs are alike. So a key says where a result comes from, as it does of a
local build.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx import codec
from epctx.error_codes import Code
from epctx.errors import EpctxError, ProviderUnavailable
from epctx.keys.records import ProviderRecord
from epctx.keys.toolchain import Described
from epctx.machines import portable
from epctx.machines.blobs import Blobs
from epctx.machines.cluster import Cluster, Member
from epctx.machines.messages import Answer, Question, decoded, encoded, own_code
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
    """The EPs of a cluster's workers, each worker asked once for each list. Used by many threads.

    Args:
        decides: where workers of one CPU have an EP in several versions.
    """

    def __init__(self, cluster: Cluster, blobs: Blobs, decides: Decides) -> None:
        self._cluster = cluster
        self._blobs = blobs
        self._decides = decides
        self._lock = threading.Lock()
        self._asked: dict[bytes, dict[str, Kind | EpctxError]] = {}
        self._kinds: dict[bytes, Kind] = {}
        self._code = own_code()

    def described(self, spec: ProviderSpec) -> Described:
        """As `Eps` has it."""
        return self.kind((spec,)).eps[0]

    def cpu(self, specs: Sequence[ProviderSpec]) -> host.Cpu:
        """As `Eps` has it."""
        return self.kind(specs).cpu

    def kind(self, specs: Sequence[ProviderSpec]) -> Kind:
        """Return what the workers are that take jobs of these EPs.

        Raises:
            ProviderUnavailable: nobody can, or it depends on who does.
        """
        name = _name(specs)
        with self._lock:
            if name not in self._kinds:
                self._kinds[name] = self._chosen(specs)
            return self._kinds[name]

    def able(self, specs: Sequence[ProviderSpec]) -> list[Member]:
        """Return the workers that can take jobs of these EPs now. Raises as `kind`."""
        wanted = self.kind(specs)
        with self._lock:
            found = self._found(self._cluster.workers(), specs)
        return [member for member, kind in found if kind == wanted]

    def _found(
        self, members: Sequence[Member], specs: Sequence[ProviderSpec]
    ) -> list[tuple[Member, Kind | EpctxError]]:
        """Return what workers are for these EPs, but of those that are gone meanwhile, and of those
        on which epctx and its libraries are not what they are here.
        """
        fitting = [each for each in members if each.facts.code == self._code]
        known = self._asked.setdefault(_name(specs), {})
        new = [each for each in fitting if each.address not in known]
        if new:
            known |= self._answers(new, specs)
        return [(each, known[each.address]) for each in fitting if each.address in known]

    def _answers(
        self, members: Sequence[Member], specs: Sequence[ProviderSpec]
    ) -> dict[str, Kind | EpctxError]:
        from epctx.machines import serving

        files = portable.pack(self._blobs, specs)
        text = encoded(Question(eps=tuple(specs), files=files))
        answers = self._cluster.ask(serving.describe, text, members)
        found: dict[str, Kind | EpctxError] = {}
        for member in members:
            told = answers.get(member.address)
            if isinstance(told, TimeoutError):
                found[member.address] = _missing("does not answer", [])
            if not isinstance(told, str):
                continue
            answer = decoded(told, Answer)
            if answer.failure is None:
                eps = decoded(codec.encode(answer.results).decode(), tuple[Described, ...])
                if len(eps) == len(specs):
                    found[member.address] = Kind(eps, member.facts.cpu)
            elif not answer.own:  # else it is asked again
                found[member.address] = protocol.restore(answer.failure, log=Path())
        return found

    def _chosen(self, specs: Sequence[ProviderSpec]) -> Kind:
        members = sorted(self._cluster.members(), key=lambda each: each.facts.name)
        found = self._found(members, specs)
        able = [(member, kind) for member, kind in found if isinstance(kind, Kind)]
        if not able:
            raise self._nobody(members, found, specs)
        locked = [each for each in able if all(self._decides(ep.record) for ep in each[1].eps)]
        able = locked or able
        _refuse_several(able)
        jobs: Counter[bytes] = Counter()
        for member, kind in able:
            jobs[codec.encode(kind)] += member.facts.jobs
        own = host.cpu()
        return max((kind for _, kind in able), key=lambda k: (k.cpu == own, jobs[codec.encode(k)]))

    def _nobody(
        self,
        members: Sequence[Member],
        found: Sequence[tuple[Member, Kind | EpctxError]],
        specs: Sequence[ProviderSpec],
    ) -> ProviderUnavailable:
        if not any(each.facts.code == self._code for each in members):
            return _missing("no worker has this epctx", [_unlike(m, self._code) for m in members])
        failures = [(member, error) for member, error in found if isinstance(error, EpctxError)]
        what = " and ".join(dict.fromkeys(spec.provider for spec in specs)) or "jobs"
        told = [f"{member.facts.name}: {error.reason}" for member, error in failures]
        error = _missing(f"no worker can take {what}", told)
        if len({type(each) for _, each in failures}) == 1:
            error.code = failures[0][1].code
        return error


def _refuse_several(able: Sequence[tuple[Member, Kind]]) -> None:
    """Refuse workers of one kind of host on which an EP has several fingerprints.

    Raises:
        ProviderUnavailable: there are such.
    """
    seen: dict[bytes, tuple[Member, ProviderRecord]] = {}
    for member, record in ((member, ep.record) for member, kind in able for ep in kind.eps):
        name = codec.encode((record.provider, record.options, record.host))
        other, known = seen.setdefault(name, (member, record))
        if known != record:
            raise ProviderUnavailable(
                f"{record.provider} is not the same on all workers",
                where=f"{other.facts.name} and {member.facts.name}",
                why=_difference(known, record),
                remedy="install one version, stop one of them, or build with a lock that says "
                "which",
                code=Code.MACHINES,
            )


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
