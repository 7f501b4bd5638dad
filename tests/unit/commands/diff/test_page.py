"""The page of `epctx diff --html`: what became of each group of two builds."""

import re
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import api, codec
from epctx.commands.diff import page
from epctx.commands.diff.compare import Changed, ChangedFile, Comparison
from epctx.commands.diff.page import ComparedGroup, groups, of_no_group
from epctx.engine.report import BuildReport
from epctx.errors import StorageError, UsageError
from epctx.files.outputs import SUMS
from epctx.lockfile.types import LockedFile
from tests.kit.reports import chain, failing, report

HOSTILE = "</script><img src=x onerror=alert(1)>'\"&{{ 7*7 }}"


def render(folder: Path, old: BuildReport, new: BuildReport) -> str:
    paths = folder / "old.build.json", folder / "new.build.json"
    for path, made in zip(paths, (old, new), strict=True):
        path.write_bytes(codec.encode(made))
    return page_of(*paths)


def page_of(old: Path, new: Path) -> str:
    page = old.with_name("page.html")
    api.diff(old, new, html=page)
    return page.read_text(encoding="utf-8")


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
    text = page_of(Path("m.build.json"), Path("i/m.build.json"))
    assert "nodes and attributes: the files of the new build are missing" in text


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


def test_a_side_without_report_has_no_page(tmp_path: Path) -> None:
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(report()))
    folder = tmp_path / "loose"
    folder.mkdir()
    for name in (SUMS, "chain_ctx.onnx"):
        (folder / name).touch()
    for pair in ((path, folder), (folder, path)):
        with pytest.raises(UsageError, match="has no build report") as caught:
            api.diff(*pair, html=tmp_path / "page.html")
        assert "--html" in caught.value.remedy
    assert not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(tmp_path: Path) -> None:
    path = tmp_path / "made.build.json"
    path.write_bytes(codec.encode(report()))
    with pytest.raises(StorageError, match="cannot be written"):
        api.diff(path, path, html=tmp_path / "none" / "page.html")


def found(*changes: Changed, files: tuple[ChangedFile, ...] = ()) -> Comparison:
    same = not changes and not files
    return Comparison(old="a", new="b", same=same, differences=changes, files=files, same_files=1)


def compared(old: BuildReport, new: BuildReport, what: Comparison) -> dict[str, ComparedGroup]:
    return {row.label: row for row in groups(old, new, what)}


def became(row: ComparedGroup) -> dict[str, tuple[str, str, str]]:
    return {fact.name: (fact.old, fact.new, fact.tone) for fact in row.facts if not fact.same}


def test_what_became_of_a_group_is_told_and_whether_that_is_good() -> None:
    made = report()
    eye = made.groups[0]
    model, verify = eye.models[0], eye.verify
    assert verify is not None
    fewer = replace(model, partitions=model.partitions[:2])
    fine = replace(verify, numbers=verify.numbers[:1])
    new = replace(eye, models=(fewer,), verify=fine, files=eye.files[:1])
    rows = compared(made, replace(made, groups=(new,)), found())
    assert became(rows["eye@edge"]) == {
        "On EPs": ("75.0 %", "50.0 %", "bad"),
        "Partitions": ("3", "2", ""),
        "Largest error": ("2.0e-02", "9.0e-03", "good"),
    }
    gone = rows["ear@edge"]
    assert gone.new is None and became(gone)["State"] == ("failed", "\N{EN DASH}", "")
    failed = compared(replace(made, groups=(eye,)), replace(made, groups=(
        replace(eye, state="failed"),)), found())  # fmt: skip
    assert became(failed["eye@edge"])["State"] == ("built", "failed", "bad")
    assert not failed["eye@edge"].same


def test_what_diff_found_goes_to_its_group_and_the_rest_to_both_builds() -> None:
    file = ChangedFile(file="edge/eye/a.onnx", old=LockedFile(size=1, sha256="00"), new=None)
    mine = Changed(area="node", where="edge/eye/a.onnx: node x", what="is new")
    other = Changed(area="partition", where="edge/eyes/chain", what="of another group")
    whole = Changed(area="toolchain", where="toolchain", what="onnx: 1 is now 2")
    what = found(mine, other, whole, files=(file,))
    rows = groups(report(), report(), what)
    (row,) = (each for each in rows if each.label == "eye@edge")
    assert row.changes == (mine,) and row.files == (file,) and not row.same
    assert rows[0] is row, "what differs comes first"
    assert of_no_group(rows, what) == (other, whole)


def test_settings_are_told_in_the_manifests_words_once() -> None:
    made = failing()
    nose = made.groups[2]
    (ep,) = nose.execution_providers
    newer = replace(
        nose,
        manifest={"models": ["chain"], "partition": {"require_coverage": 0.9}},
        execution_providers=(replace(ep, toolchain={"QAIRT": "2.52"}),),
    )
    setting = Changed(area="setting", where="edge/nose", what="partition.require_coverage: ...")
    new = replace(made, groups=(*made.groups[:2], newer, *made.groups[3:]))
    row = compared(made, new, found(setting))["nose@edge"]
    assert [(change.area, change.what) for change in row.changes] == [
        ("setting", "partition.require_coverage: 0.5 is now 0.9"),
        ("toolchain", 'npu.QAIRT: "2.51" is now "2.52"'),
    ]
    without = replace(made, groups=(replace(nose, manifest={}),))
    row = compared(without, new, found(setting))["nose@edge"]
    assert setting in row.changes, "a report that has no manifest: the locks tell"
