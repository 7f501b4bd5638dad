"""What a build's report says of each group's settings: its EPs, and its part of the manifest."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from epctx.engine.report import EpReport, GroupReport
from epctx.errors import EpctxError
from epctx.keys import Toolchain
from epctx.manifest import Manifest, ProviderSpec


def described(
    reports: Iterable[GroupReport], manifest: Manifest, toolchain: Toolchain
) -> tuple[GroupReport, ...]:
    """The reports with what the manifest says of each group, and what its EPs are here."""
    targets = {target.name: target for target in manifest.targets}
    specs = {
        (target.name, group.name): group.execution_providers
        for target in manifest.targets
        for group in target.groups
    }
    return tuple(
        replace(
            report,
            execution_providers=tuple(
                _ep(spec, toolchain) for spec in specs.get((report.target, report.group), ())
            ),
            manifest=targets[report.target].written[report.group],
        )
        for report in reports
    )


def _ep(spec: ProviderSpec, toolchain: Toolchain) -> EpReport:
    found = EpReport(alias=spec.alias, provider=spec.provider, options=spec.options)
    try:
        record = toolchain.provider(spec)
    except EpctxError:  # which is what the group failed for
        return found
    return replace(found, options=record.options, toolchain=record.toolchain)
