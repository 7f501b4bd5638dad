from msgspec.structs import replace

from epctx.commands.compared.groups import ComparedGroup, groups, of_no_group
from epctx.commands.diff.result import Changed, ChangedFile, Comparison
from epctx.engine.report import BuildReport
from epctx.lockfile.types import LockedFile
from tests.kit.reports import failing, report


def found(*changes: Changed, files: tuple[ChangedFile, ...] = ()) -> Comparison:
    same = not changes and not files
    return Comparison(old="a", new="b", same=same, differences=changes, files=files, same_files=1)


def compared(old: BuildReport, new: BuildReport, what: Comparison) -> dict[str, ComparedGroup]:
    return {row.label: row for row in groups(old, new, what)}


def became(row: ComparedGroup) -> dict[str, tuple[str, str, str]]:
    return {fact.name: (fact.old, fact.new, fact.tone) for fact in row.facts if not fact.same}


def test_a_build_is_the_same_as_itself() -> None:
    rows = compared(report(), report(), found())
    assert set(rows) == {"eye@edge", "ear@edge", "eye@cloud"}
    assert all(row.same and not became(row) for row in rows.values())


def test_nothing_to_do_is_no_difference() -> None:
    made = report()
    again = replace(made.groups[0], state="up to date", stages=())
    (row, *_) = groups(made, replace(made, groups=(again,)), found())
    rows = compared(made, replace(made, groups=(again, *made.groups[1:])), found())
    assert rows["eye@edge"].same
    assert became(rows["eye@edge"])["Time"] == ("9.00 s", "\N{EN DASH}", "")
    assert row.label != "eye@edge", "what differs, or is gone, comes first"


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


def test_numbers_are_side_by_side() -> None:
    made = report()
    eye = made.groups[0]
    assert eye.verify is not None
    new = replace(eye, verify=replace(eye.verify, numbers=eye.verify.numbers[1:]))
    row = compared(made, replace(made, groups=(new,)), found())["eye@edge"]
    assert [(n.output, n.old is None, n.new is None) for n in row.numbers] == [
        ("far", False, False),
        ("near", False, True),
    ]
