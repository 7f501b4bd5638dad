"""What execution providers are known to write otherwise each time, where that may be why."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from epctx.engine.plan import Plan
from epctx.providers import registry


def known(plan: Plan, folders: Collection[str]) -> Iterator[str]:
    """What the EPs of groups say of themselves, one line an EP.

    Args:
        folders: of groups whose bytes are not the same, `<target>/<group>`.
    """
    groups = [p.group for p in plan.groups if f"{p.target}/{p.group.name}" in folders]
    for spec in {spec.provider: spec for g in groups for spec in g.execution_providers}.values():
        provider = registry.create(spec)
        if provider.unstable:
            yield f"{provider.name}: {provider.unstable}"
