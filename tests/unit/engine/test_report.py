from __future__ import annotations

import json
import re
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from epctx.engine.report import revision
from scripts import report_schema
from tests.kit.reports import report


def test_the_file_is_what_the_dataclasses_say() -> None:
    remedy = "run `python -m scripts.report_schema`"
    assert report_schema.PATH.read_text(encoding="utf-8") == report_schema.text(), remedy


def test_it_is_a_schema_that_refuses_what_is_no_report() -> None:
    schema = json.loads(report_schema.text())
    jsonschema.Draft202012Validator.check_schema(schema)
    validator = jsonschema.Draft202012Validator(schema)
    assert not validator.is_valid({})
    assert not validator.is_valid({"folders": [{"folder": 1}]})
    assert validator.is_valid({"folders": []})


def test_attributes_are_described_where_they_are() -> None:
    definitions = json.loads(report_schema.text())["$defs"]
    finding = definitions["Finding"]
    assert finding["properties"]["subject"]["description"].startswith("a file of the folder")
    assert "Attributes" not in finding["description"]


# --- in a notebook: small, escaped, whole ---


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


@pytest.mark.parametrize("packed", [False, True])
def test_the_revision_is_the_commit_that_is_checked_out(tmp_path: Path, packed: bool) -> None:
    git, commit, other = tmp_path / ".git", "0a" * 20, "0b" * 20
    (git / "refs/heads").mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/main\n")
    name = "packed-refs" if packed else "refs/heads/main"
    before = f"{other} refs/heads/maintenance\n" if packed else ""
    (git / name).write_text(f"{before}{commit}{' refs/heads/main' * packed}\n")
    inner = tmp_path / "models" / "vision"
    inner.mkdir(parents=True)
    assert revision(inner) == commit


def test_a_further_work_tree_and_no_branch_have_a_revision(tmp_path: Path) -> None:
    own, tree = tmp_path / "main/.git/worktrees/w", tmp_path / "tree"
    own.mkdir(parents=True)
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    (own / "commondir").write_text("../..\n")
    (own / "HEAD").write_text("ref: refs/heads/side\n")
    assert revision(tree) is None, "nothing was committed"
    (tmp_path / "main/.git/refs/heads").mkdir(parents=True)
    (tmp_path / "main/.git/refs/heads/side").write_text(f"{'0c' * 20}\n")
    assert revision(tree) == "0c" * 20
    (own / "HEAD").write_text(f"{'0d' * 20}\n")
    assert revision(tree) == "0d" * 20


def test_where_git_has_none_there_is_no_revision(tmp_path: Path) -> None:
    assert revision(tmp_path) is None
    (tmp_path / ".git").write_bytes(b"\xff")
    assert revision(tmp_path) is None
