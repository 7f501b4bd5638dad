"""What a device computed with what was built, beside the build: a table of the report's page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath

from msgspec import Struct

from epctx.files.outputs import CONTEXT_SUFFIX
from epctx.verification.device_results import DeviceModel, DeviceResults
from epctx.verification.findings import VerifyReport


class OnDevice(Struct, frozen=True, kw_only=True):
    """A device, and what `epctx verify` found wrong with each model of a build, and with others."""

    results: DeviceResults
    models: Mapping[str, tuple[DeviceModel, list[str]]]
    failed: list[str]


def section(results: DeviceResults, judged: VerifyReport) -> OnDevice:
    """What the page says of a device; `judged`: by the folders of the build."""
    ran = {each.model: each for each in results.models}
    models, others = {}, []
    for folder in judged.folders:
        place = PurePath(folder.folder)
        failed = [each for each in folder.findings if each.outcome == "fail"]
        for file in folder.models:
            name = f"{place.parent.name}/{place.name}/{file.removesuffix(CONTEXT_SUFFIX)}"
            own = [each.message for each in failed if each.subject == file]
            models[name] = (ran.get(name, DeviceModel(model=name)), own)
        others += [f"{place.name}: {f.message}" for f in failed if f.subject not in folder.models]
    return OnDevice(results=results, models=models, failed=others)


def milliseconds(seconds: float | None) -> str:
    """A time of an inference in words."""
    return "not run" if seconds is None else f"{1000 * seconds:,.3f} ms"
