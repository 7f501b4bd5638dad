"""The page as text: nothing of a model is markup, nothing is loaded, nothing else may run."""

import base64
import dataclasses
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Literal

import pytest
from msgspec.structs import replace

from epctx.commands.report import figures, page, sections
from epctx.engine.report import GroupReport
from epctx.keys.toolchain import Traits
from epctx.stages.report import CompositionReport
from tests.kit.reports import chain, failing, numbers, report

HOSTILE = "</script><script>alert({})</script><img src=x onerror=alert(1)>'\"&\u2028{{{{ 7*7 }}}}"


class Elements(HTMLParser):
    """Every element of a page, and the text in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.raw: list[str] = []
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self._inside = tag if tag in ("script", "style") else ""
        if self._inside:
            self.raw.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.raw[-1] += data


def test_no_name_of_a_model_is_markup(tmp_path: Path) -> None:
    clean = Elements(page.render(report(chain(12)), tmp_path))
    hostile = chain(12, name=HOSTILE, why=HOSTILE.format(0))
    parts = tuple(replace(p, inputs=(HOSTILE,), outputs=(HOSTILE,)) for p in hostile.partitions)
    text = page.render(report(replace(hostile, name=HOSTILE, partitions=parts)), tmp_path)
    found = Elements(text)
    assert [tag for tag, _ in found.found] == [tag for tag, _ in clean.found]
    assert "<script>alert" not in text and "<img" not in text
    assert "{{ 7*7 }}" in text, "it was taken for a template"
    data = next(raw for raw in found.raw if raw.startswith('{"units"'))
    assert json.loads(data)["nodes"]["names"][0] == HOSTILE.format(0)


def test_what_load_noted_of_a_source_is_on_the_page(tmp_path: Path) -> None:
    text = page.render(report(replace(chain(3), notes=("imports opset 18 & 17",))), tmp_path)
    assert "<li>imports opset 18 &amp; 17</li>" in text
    assert "on the source" not in page.render(report(chain(3)), tmp_path)


def test_nothing_is_loaded_and_no_attribute_is_script_or_style(tmp_path: Path) -> None:
    for tag, attributes in Elements(page.render(report(), tmp_path)).found:
        for name, value in attributes.items():
            assert not name.startswith("on") and name not in ("style", "src", "srcset", "action")
            if name == "href":
                assert value is not None and value.startswith("#"), (tag, value)


def test_the_policy_names_this_script_and_this_style_and_nothing_else(tmp_path: Path) -> None:
    found = Elements(page.render(report(), tmp_path))
    policy = next(a["content"] for tag, a in found.found if "http-equiv" in a)
    assert policy is not None
    assert policy.startswith("default-src 'none'; ")
    scripts = [a for tag, a in found.found if tag in ("script", "style")]
    runs = [raw for raw, a in zip(found.raw, scripts, strict=True) if a.get("type") is None]
    digests = [base64.b64encode(hashlib.sha256(raw.encode()).digest()).decode() for raw in runs]
    assert len(digests) == 2
    assert re.findall(r"'sha256-([^']+)'", policy) == digests


def test_every_reference_within_the_page_leads_somewhere(tmp_path: Path) -> None:
    found = Elements(page.render(report(), tmp_path)).found
    ids = [attributes["id"] for _, attributes in found if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in found:
        for name in ("aria-labelledby", "href"):
            if (value := attributes.get(name)) is not None:
                assert value.removeprefix("#") in ids


def test_every_table_has_a_caption_and_every_column_a_heading(tmp_path: Path) -> None:
    text = page.render(report(), tmp_path)
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        assert re.search(r"<caption>\s*\S", table), table[:200]
        assert "<th scope=" in table, table[:200]


@pytest.mark.parametrize("groups", [slice(1, 2), slice(0, 0)])
def test_a_build_of_which_nothing_came_has_a_page(tmp_path: Path, groups: slice) -> None:
    made = report()
    text = page.render(replace(made, groups=made.groups[groups]), tmp_path)
    assert "No files were written." in text


def test_each_remedy_has_a_line_and_guessed_sizes_are_a_warning(tmp_path: Path) -> None:
    made = failing()
    _, _, nose, *_ = made.groups
    assert nose.failure is not None
    failure = dataclasses.replace(nose.failure, remedy="set `batch`\nallow more")
    nose = replace(nose, failure=failure, guessed={"chain": "batch: 1"})
    text = page.render(replace(made, groups=(nose,)), tmp_path)
    first, _, section = text.partition('id="overview"')
    for part in (first, section):
        assert "<li>→ set `batch`</li>\n  <li>→ allow more</li>" in part
        assert "<b>chain: batch: 1: these sizes are guesses of" in part


def test_the_head_names_chips_eps_sdks_and_the_source_revision(tmp_path: Path) -> None:
    made = failing()
    _, _, nose, *_ = made.groups
    (ep,) = nose.execution_providers
    traits = Traits(name=ep.provider, sources=(), isolated=True, native=True)
    traits = replace(traits, chips="60 (sc8380xp, v73)")
    other = replace(ep, provider="Other", toolchain={"kit": "1.2", "kit/lib.so": "blake3:ab"})
    nose = replace(nose, execution_providers=(replace(ep, traits=traits), other))
    text = page.render(replace(made, groups=(nose, nose), revision="0123abcd"), tmp_path)
    head = text[text.index("<header") : text.index("</header>")]
    sold = "Snapdragon X Elite / Snapdragon X Plus"
    named = f"{sold}: 60 (sc8380xp, v73), QNNExecutionProvider, QAIRT 2.51"
    assert re.findall("<li>(.*)</li>", head) == [named, "Other, kit 1.2"]
    assert "source revision <code>0123abcd</code>" in head
    assert "source revision" not in page.render(made, tmp_path)


def test_a_composition_is_told_by_its_parts_and_wiring(tmp_path: Path) -> None:
    made = report()
    wiring = CompositionReport(
        parts={"first": "eye/chain", "second": "eye/other"},
        links={"second.h": "first.h"},
        inputs={"x": ("first.x", "second.mask")},
        outputs={"y": "second.y"},
    )
    composed = GroupReport(target="edge", group="whole", state="built", composition=wiring)
    text = page.render(replace(made, groups=(*made.groups, composed)), tmp_path)
    for told in ("eye/other", "first.x, second.mask", "second.h", "second.y"):
        assert told in text


@pytest.mark.parametrize(
    ("error", "told"),
    [(0.0, "0 %"), (1e-9, "&lt; 0.1 %"), (0.009, "90 %"), (0.02, "200 %"), (5.0, "500 times")],
)
def test_how_much_of_the_tolerance_an_error_takes(tmp_path: Path, error: float, told: str) -> None:
    made = report()
    verify = made.groups[0].verify
    assert verify is not None
    compared = replace(verify, numbers=(numbers("y", error, passed=error < 0.01),))
    groups = (replace(made.groups[0], verify=compared),)
    assert f"</svg> {told}</td>" in page.render(replace(made, groups=groups), tmp_path)


@pytest.mark.parametrize("state", ["built", "failed"])
def test_a_table_of_very_many_rows_has_the_first_and_what_failed_among_them(
    tmp_path: Path, state: Literal["built", "failed"]
) -> None:
    made = report()
    first = made.groups[0]
    assert first.verify is not None
    passed, undecided = first.verify.findings
    broken = replace(passed, outcome="fail", message="the last of all")
    many = replace(
        first.verify,
        findings=(*[passed] * figures.ROWS, *[undecided] * figures.ROWS, broken),
        numbers=(
            *(numbers(f"output {n}", 0.001) for n in range(figures.ROWS + 6)),
            numbers("bad", 0.02, passed=False),
        ),
    )
    group = replace(first, state=state, verify=many)
    text = page.render(replace(made, groups=(group,)), tmp_path)
    for name in ("checks", "numbers"):
        rows = text[text.index(f'<table id="{name}-rows"') :]
        rows = rows[: rows.index("</section>")]
        assert rows.count("<tr data-kind") == figures.ROWS
        assert rows.index('data-kind="fail"') == rows.index("data-kind")
        more = {"checks": figures.ROWS + 1, "numbers": 7}[name]
        assert f"And {more:,} more, which <code>made.build.json</code> has." in rows
    section = text[text.index('id="group-1"') : text.index('id="numbers"')]
    assert section.count("<tr data-kind") == figures.ROWS + sections.SHOWN
    assert "the last of all" in section
    assert "more, which <code>" not in page.render(made, tmp_path)
