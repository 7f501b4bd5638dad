"""What a build would do, and why: `epctx plan`."""

from __future__ import annotations

from pathlib import Path

from epctx.cache import Cache
from epctx.cache.action import RemoteReport
from epctx.engine import ranges
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.plan import Plan
from epctx.engine.staleness import (
    GroupPlan,
    LockedSources,
    Memo,
    explain,
    explain_composition,
)
from epctx.text import Brief


class PlanReport(Brief, frozen=True, kw_only=True):
    """What a build would do, in manifest order; `remote`: the shared cache that was asked."""

    name: str
    groups: tuple[GroupPlan, ...]
    remote: RemoteReport | None = None


def plan_report(plan: Plan, *, out: Path, cache: Cache, numbers: bool) -> PlanReport:
    """Tell what `build` would do with these arguments; as `api.plan`."""
    place = Place(out=out.resolve(), name=plan.manifest.name)
    lookup = Lookup(cache, cache.digests, numbers=numbers, ranges=ranges.of(plan.manifest))
    memo = Memo(lookup, place, plan.manifest.path)
    known = {planned.label: memo.state(planned) for planned in plan.groups}
    cache.digests.flush()
    locked = LockedSources(plan.manifest.path)
    found = [explain(each, memo, locked) for each in known.values()]
    found += [explain_composition(each, known, memo, place) for each in plan.compositions]
    remote = None if cache.remote is None else cache.remote.report
    return PlanReport(name=plan.manifest.name, groups=tuple(found), remote=remote)
