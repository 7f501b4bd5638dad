"""`epctx doctor`: what is installed here, and what this host can build and run."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rich.console import RenderableType
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from epctx import api
from epctx.cli import declared
from epctx.cli.render import UI, facts_table, shown
from epctx.commands.doctor.probe import CacheDiagnosis, Diagnosis, ProviderDiagnosis
from epctx.errors import EpctxError

NOT_TRIED = "not tried on this host"
STYLES = {"ready": "green", "no device": "yellow", "not installed": "dim", "broken": "bold red"}


@declared.by(api.doctor)
def doctor(ui: UI, call: Callable[..., Diagnosis]) -> int:
    diagnosis = call()
    ui.emit(diagnosis)
    ui.print(*_page(diagnosis, every=bool(ui.verbose)))
    for problem in diagnosis.problems:
        ui.put(shown(EpctxError.of(problem)), stderr=True)
    return diagnosis.problems[0].exit_code if diagnosis.problems else 0


def _page(diagnosis: Diagnosis, *, every: bool) -> Iterator[RenderableType]:
    host = diagnosis.host
    hidden = f"the devices of {', '.join(diagnosis.hidden)} (EPCTX_HIDE_DEVICES)"
    yield facts_table(
        {
            "host": f"{host.system}, {host.machine}, {host.cores} cores, {decimal(host.memory)}",
            "Python": host.python,
            "packages": ", ".join(f"{name} {version}" for name, version in host.packages.items()),
            "cache": _cache(diagnosis.cache),
            **({"hidden": hidden} if diagnosis.hidden else {}),
        }
    )
    absent = [each for each in diagnosis.providers if not each.package]
    for each in diagnosis.providers:
        if every or each not in absent:
            yield _provider(each)
    if absent and not every:
        names = ", ".join(each.name for each in absent)
        yield Text(f"\nnot in this onnxruntime, {NOT_TRIED}: {names} (-v: how to get them)")


def _cache(cache: CacheDiagnosis | None) -> str:
    if cache is None:
        return "unknown"
    words = "read-only" if cache.readonly else "writable" if cache.writable else "not writable"
    return f"{cache.folder} ({words})"


def _provider(each: ProviderDiagnosis) -> RenderableType:
    facts = {
        "from": each.package or "no installed package",
        "versions": ", ".join(f"{name} {version}" for name, version in each.versions.items()),
        "devices": "; ".join(each.devices),
    }
    if each.state == "ready":
        facts["builds here"] = _yes_or_no(each.builds)
        facts["runs here"] = _yes_or_no(each.runs)
    facts["tried on"] = each.tried or ""
    facts["but"] = "; ".join(each.limits)
    if each.failure is not None and each.state != "broken":
        facts["why"] = ": ".join(t for t in (each.failure.what, each.failure.why) if t)
        facts["remedy"] = each.failure.remedy
    title = Text.assemble("\n", (each.name, "bold"), "  ", (each.state, STYLES[each.state]))
    table = Table.grid()
    table.add_row(title)
    table.add_row(facts_table({name: words for name, words in facts.items() if words}))
    return table


def _yes_or_no(able: bool | None) -> str:
    return NOT_TRIED if able is None else "yes" if able else "no"
