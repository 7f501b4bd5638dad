"""What a build would do, and why: `epctx plan`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from epctx.cache.action import RemoteReport
from epctx.cache.store import Shared, open_cache
from epctx.engine import plan as planning
from epctx.engine import ranges
from epctx.engine.events import Listener, notices
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.plan import PlannedGroup
from epctx.engine.staleness import (
    GroupPlan,
    Memo,
    explain,
    explain_composition,
)
from epctx.engine.state import GroupState
from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.text import Brief


class PlanReport(Brief, frozen=True, kw_only=True):
    """What a build would do, in manifest order; `remote`: the shared cache that was asked."""

    name: str
    groups: tuple[GroupPlan, ...]
    remote: RemoteReport | None = None


def plan(
    manifest: Path,
    *,
    out: Path,
    only: Sequence[str],
    numbers: bool,
    allow_outside: bool,
    shared: Shared,
    listener: Listener,
) -> PlanReport:
    """Tell what `build` would do with these arguments; as `api.plan`."""
    planned = planning.read(manifest, only=only, allow_outside=allow_outside)
    cache = open_cache(notices(listener), shared)
    place = OutputPaths(out=out.resolve(), name=planned.manifest.name)
    lookup = Lookup(cache, cache.digests, numbers=numbers, ranges=ranges.of(planned.manifest))
    memo = Memo(lookup, place, planned.manifest.path)
    known = {each.label: _look(memo, each) for each in planned.groups}
    cache.digests.flush()
    found = [explain(each, memo) for each in known.values()]
    found += [explain_composition(each, known, memo, place) for each in planned.compositions]
    remote = None if cache.remote is None else cache.remote.report
    return PlanReport(name=planned.manifest.name, groups=tuple(found), remote=remote)


def _look(memo: Memo, planned: PlannedGroup) -> GroupState:
    """Tell what is known of a group; what is wrong in a model is its failure, since a plan may be
    made where weights are not.
    """
    try:
        return memo.state(planned)
    except ModelError as error:
        if error.code == Code.MODEL_MISSING:
            raise
        return GroupState(planned=planned, failure=error)
