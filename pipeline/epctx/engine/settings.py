"""What a build's report says of each group's settings: its EPs, and its part of the manifest."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from epctx.engine.lookup import Lookup
from epctx.engine.report import EpReport, GroupReport
from epctx.errors import EpctxError
from epctx.keys import Toolchain
from epctx.lockfile.types import Lock
from epctx.manifest import Manifest, ProviderSpec


def described(
    reports: Iterable[GroupReport], manifest: Manifest, lookup: Lookup, lock: Lock | None
) -> tuple[GroupReport, ...]:
    """The reports with what the manifest says of each group, and what its EPs are here.

    Args:
        lock: of the build; None: a group failed.
    """
    targets = {target.name: target for target in manifest.targets}
    groups = {(t.name, group.name): group for t in manifest.targets for group in t.groups}
    locked = {} if lock is None else lock.groups

    def tell(report: GroupReport) -> GroupReport:
        written = targets[report.target].written[report.group]
        group = groups.get((report.target, report.group))
        if group is None:  # a composition
            return replace(report, manifest=written)
        known = locked.get(f"{report.target}/{report.group}")
        keys = [session.key for session in known.session_groups.values()] if known else []
        return replace(
            report,
            execution_providers=tuple(_ep(s, lookup.toolchain) for s in group.execution_providers),
            manifest=written,
            devices=lookup.devices(group, keys[0]) if keys else {},
        )

    return tuple(map(tell, reports))


def _ep(spec: ProviderSpec, toolchain: Toolchain) -> EpReport:
    found = EpReport(alias=spec.alias, provider=spec.provider, options=spec.options)
    try:
        record, traits = toolchain.provider(spec), toolchain.traits(spec)
    except EpctxError:  # which is what the group failed for
        return found
    return replace(found, options=record.options, toolchain=record.toolchain, traits=traits)
