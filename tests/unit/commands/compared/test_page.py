import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import codec
from epctx.commands.compared import page
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.files.outputs import SUMS
from tests.kit.reports import chain, failing, report

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&{{ 7*7 }}"


def render(folder: Path, old: BuildReport, new: BuildReport) -> str:
    paths = folder / "old.build.json", folder / "new.build.json"
    for path, made in zip(paths, (old, new), strict=True):
        path.write_bytes(codec.encode(made))
    return page.render(*paths)


def test_what_became_of_each_group_is_on_the_page(tmp_path: Path) -> None:
    text = render(tmp_path, report(), failing())
    assert "nose@edge" in text and f"The new one failed: {Code.NUMBERS} VerificationError" in text
    assert ">eye@cloud</h3>" in text and '<span class="state state-gone">gone</span>' in text
    # Only the old report's groups are the same: eye@edge and ear@edge.
    assert "4 of 6 groups differ" in text
    assert str(tmp_path) not in text, "a path of the builder"


def test_what_only_one_side_tells_names_the_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One path is part of the other."""
    for folder in (tmp_path, tmp_path / "i"):
        folder.mkdir(exist_ok=True)
        (folder / "m.build.json").write_bytes(codec.encode(report()))
    (tmp_path / "made/edge/eye").mkdir(parents=True)
    for name in (SUMS, "chain_ctx.onnx"):
        (tmp_path / "made/edge/eye" / name).touch()
    monkeypatch.chdir(tmp_path)
    text = page.render(Path("m.build.json"), Path("i/m.build.json"))
    assert "nodes and attributes: the files of the new build are not here" in text


def test_two_builds_of_which_nothing_differs_say_so(tmp_path: Path) -> None:
    text = render(tmp_path, report(), replace(report(), started="2026-02-02T03:04:05+00:00"))
    assert "Both builds are the same" in text and 'id="groups"' not in text
    assert "Both builds are the same" in render(
        tmp_path, replace(report(), groups=()), replace(report(), groups=())
    )


def test_no_name_of_a_model_is_markup(tmp_path: Path) -> None:
    old = replace(chain(12, name="x{}" + HOSTILE.replace("{", "{{").replace("}", "}}")), name="m")
    new = replace(old, declined=(), partitions=old.partitions[:1], outline=None)
    text = render(tmp_path, report(old), report(new))
    assert "<img" not in text and "{{ 7*7 }}" in text


def test_every_reference_leads_somewhere_and_every_table_has_its_heads(tmp_path: Path) -> None:
    text = render(tmp_path, report(), failing())
    ids = re.findall(r' id="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for reference in re.findall(r'href="([^"]*)"', text):
        assert reference.startswith("#") and reference[1:] in ids
    for table in re.findall(r"<table.*?</table>", text, re.DOTALL):
        assert re.search(r"<caption>\s*\S", table) and "<th scope=" in table


def test_of_very_many_differences_the_first_are_told(tmp_path: Path) -> None:
    old, new = chain(600), chain(600, left=2)
    text = render(tmp_path, report(old), report(new))
    assert re.search(r"And [0-9]+ more: <code>epctx diff -v</code>", text)
    assert text.count("<tr><td>partition</td>") == 2 * page.SHOWN
