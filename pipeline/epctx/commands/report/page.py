"""HTML page from this package's own templates and assets only.

A model's names are untrusted. Jinja escapes them in HTML. The data for the script contains no
character that could end its element. The page's policy allows only this script.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.resources
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import jinja2
from jinja2.utils import htmlsafe_json_dumps
from markupsafe import Markup
from msgspec.structs import replace

from epctx import codec
from epctx.commands.report import figures, graphs, sections
from epctx.commands.report.figures import OnDevice
from epctx.commands.report.sections import Links
from epctx.engine.report import BuildReport, GroupReport
from epctx.lockfile import yaml_text
from epctx.parsing.schema import providers
from epctx.stages.report import ModelReport
from epctx.text import size_words
from epctx.verification.findings import error_words

STYLES: Final = ("page.css", "graph.css")
SCRIPTS: Final = ("viewport.js", "canvas.js", "nodes.js", "graph.js", "page.js")
"""Script files in order; each part uses those before it."""


def render(
    report: BuildReport, folder: Path, page: Path | None = None, on_device: OnDevice | None = None
) -> str:
    """Render the report as one HTML page.

    Args:
        folder: folder of the report, and of the group folders if they were not moved.
        page: destination folder of the page; None for the report's folder.
        on_device: results of a device; None without any.
    """
    # Failed groups come first, in every table and section.
    report = replace(report, groups=tuple(sorted(report.groups, key=_passed)))
    links = Links(folder=folder, page=page or folder)
    eps = figures.eps(report)
    rows = sections.contexts(report, folder)
    targets, matrix = figures.group_matrix(report, eps)
    return document(
        "page.html",
        report=report,
        eps=eps,
        figures=figures.key_figures(report, sections.saved_bytes(rows)),
        targets=targets,
        matrix=matrix,
        spent=figures.time_sentence(report),
        timeline=figures.timeline(report),
        sections=sections.sections(report, eps, links),
        drawings=_Drawings(report, eps),
        contexts=rows,
        device=on_device,
        links=links,
        numbers=figures.number_rows(report.groups),
        checks=figures.check_rows(report.groups),
        built_for=_built_for(report),
    )


def _passed(group: GroupReport) -> bool:
    return group.state != "failed"


def document(template: str, **names: object) -> str:
    """Render a template with this package's style and script, and a content policy for both."""
    css, js = _asset(*STYLES), _asset(*SCRIPTS)
    page = _environment().get_template(template)
    return page.render(names, css=Markup(css), js=Markup(js), policy=_policy(css, js))


def _built_for(report: BuildReport) -> list[str]:
    """List each chip with its product names, the EP's name for it, the EP and its SDK."""
    lines: dict[str, None] = {}
    for ep in (ep for group in report.groups for ep in group.execution_providers):
        schema, chips = providers.find(ep.provider), ep.traits.chips if ep.traits else ""
        choices = [schema.choices(name) for name in schema.properties] if schema else []
        sold = [name for each in choices for name, part in each.items() if part in chips]
        chip = ": ".join(filter(None, (" / ".join(sold), chips)))
        versions = (f"{n} {v}" for n, v in ep.toolchain.items() if not v.startswith("blake3:"))
        lines[", ".join(filter(None, (chip, ep.provider, *versions)))] = None
    return list(lines)


class _Drawings:
    """Drawings of the models; identical drawings are kept once."""

    def __init__(self, report: BuildReport, eps: Sequence[str]) -> None:
        self.data: dict[str, Markup] = {}
        self._ids: dict[int, str] = {}
        ids: dict[object, str] = {}
        for model in (model for group in report.groups for model in group.models):
            key = (model.outline, model.partitions, model.declined)
            if key not in ids:
                drawn = graphs.draw(model, eps)
                ids[key] = f"drawing-{len(self.data) + 1}" if drawn else ""
                if drawn is not None:
                    self.data[ids[key]] = htmlsafe_json_dumps(
                        drawn, dumps=lambda value: codec.encode(value).decode()
                    )
            self._ids[id(model)] = ids[key]

    def of(self, model: ModelReport) -> str:
        """Id of a model's drawing; empty if it has none."""
        return self._ids[id(model)]


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("epctx.commands.report", "assets"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "bytes": size_words,
        "computed_by": figures.SESSIONS.__getitem__,
        "duration": figures.duration,
        "error": error_words,
        "label": figures.group_label,
        "left": figures.left_rows,
        "loss_plot": sections.loss_plot,
        "losses": sections.loss_rows,
        "milliseconds": figures.milliseconds,
        "named": sections.loss_names,
        "number": _number,
        "quantized_words": sections.quantize_summary,
        "tolerated": _tolerated,
        "warned": sections.quantize_warnings,
        "yaml": yaml_text.text,
    }
    environment.globals |= {
        "histogram": figures.histogram,
        "histogram_size": (figures.HISTOGRAM_WIDTH, figures.HISTOGRAM_HEIGHT),
        "loss_size": (sections.PLOT_WIDTH, sections.PLOT_HEIGHT),
        "losses_most": sections.LOSS_MOST,
        "losses_shown": sections.LOSS_ROWS,
        "rows_shown": figures.ROWS,
        "shares": figures.shares,
        "shown": sections.SHOWN,
    }
    return environment


def _number(value: float | None) -> str:
    """Format a measured number with three significant digits."""
    if value is None:
        return "–"  # noqa: RUF001 - a dash for a missing number
    return f"{value:.3g}"


def _tolerated(used: float) -> str:
    """Share of a tolerance that an error uses, in words."""
    if 0 < used < 0.001:
        return "< 0.1 %"
    return f"{100 * used:.3g} %" if used < 10 else f"{used:.3g} times"


def _asset(*names: str) -> str:
    folder = importlib.resources.files("epctx.commands.report") / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _policy(css: str, js: str) -> str:
    """Content security policy of the page: only its own style and script, no network."""
    return (
        f"default-src 'none'; style-src {_digest(css)}; script-src {_digest(js)}; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
