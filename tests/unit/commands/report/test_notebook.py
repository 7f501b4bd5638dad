"""A build report as a notebook shows it: small, escaped, whole."""

from __future__ import annotations

import re

from msgspec.structs import replace

from tests.kit.reports import report


def test_it_says_what_became_of_each_group() -> None:
    shown = report()._repr_html_()
    assert re.findall(r"<th>([^<]*)", shown)[:2] == ["group", "state"]
    assert "<td>ear@edge</td><td>failed</td>" in shown
    assert "E0601: crashed; report it" in shown
    assert shown.index("ear@edge") < shown.index("eye@cloud")  # what failed comes first


def test_names_are_escaped_and_nothing_is_loaded() -> None:
    hostile = replace(report(), name="<script>alert(1)</script>")
    shown = hostile._repr_html_()
    assert "<script" not in shown and "&lt;script&gt;" in shown
    assert "src=" not in shown and "href=" not in shown


def test_a_large_build_is_a_small_page() -> None:
    whole = report()
    groups = tuple(replace(whole.groups[0], group=f"g{n}") for n in range(180))
    shown = replace(whole, groups=groups)._repr_html_()
    assert shown.count("<tr>") == 51 and "and 130 more" in shown
    assert len(shown) < 20_000


def test_a_repr_is_a_line() -> None:
    whole = report()
    groups = tuple(replace(whole.groups[0], group=f"g{n}") for n in range(180))
    shown = repr(replace(whole, groups=groups))
    assert shown.startswith("BuildReport(schema_version=1, epctx='0.1.0', name='made'")
    assert "groups=<180>" in shown
    assert len(shown) < 300 and "\n" not in shown
