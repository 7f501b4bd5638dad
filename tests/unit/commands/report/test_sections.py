from pathlib import Path

from msgspec.structs import replace

from epctx.commands.report.links import Links
from epctx.commands.report.sections import OPEN, Section, sections
from epctx.engine.report import BuildReport
from tests.kit.reports import failing, file, report


def made(of: BuildReport, folder: Path) -> tuple[Section, ...]:
    return sections(of, ("npu",), Links(folder=folder, page=folder))


def test_a_section_has_all_that_is_known_of_its_group(tmp_path: Path) -> None:
    _, _, nose, *_ = made(failing(), tmp_path)
    assert nose.number == 3 and nose.group.group == "nose" and nose.cell.error == "4.0e-01"
    assert [row.worst.output for row in nose.numbers] == ["far"]
    assert [row.finding.outcome for row in nose.checks] == ["fail", "not checkable", "pass"]
    assert nose.passed == 1 and nose.log is None


def test_of_what_was_built_only_checks_that_did_not_pass_are_told(tmp_path: Path) -> None:
    eye, *_ = made(report(), tmp_path)
    assert [row.finding.outcome for row in eye.checks] == ["not checkable"] and eye.passed == 1


def test_few_groups_are_open_and_of_many_those_that_failed(tmp_path: Path) -> None:
    assert all(each.open and each.drawn for each in made(report(), tmp_path))
    found = made(failing(), tmp_path)
    assert [each.open for each in found] == [False, True, True, False, False]
    assert [each.drawn for each in found] == [True, True, False, True, True]
    failed = failing().groups[2]
    many = made(replace(failing(), groups=(failed,) * 20), tmp_path)
    assert sum(each.open for each in many) == OPEN


def test_files_and_logs_that_are_there_are_pointed_to(tmp_path: Path) -> None:
    (tmp_path / "made/edge/eye/golden").mkdir(parents=True)
    for name in ("chain_ctx.onnx", "golden/in.npz"):
        (tmp_path / "made/edge/eye" / name).touch()
    (tmp_path / "made.logs").mkdir()
    (tmp_path / "made.logs/nose.log").touch()
    built, _, failed, *_ = failing().groups
    golden = replace(built, golden=(file("in.npz", 0),))
    eye, nose = made(replace(failing(), groups=(golden, failed)), tmp_path)
    assert [(each.name, each.link) for each in eye.files] == [
        ("chain_npu.bin", None),
        ("chain_ctx.onnx", "./made/edge/eye/chain_ctx.onnx"),
        ("golden/in.npz", "./made/edge/eye/golden/in.npz"),
    ]
    assert nose.log == "./made.logs/nose.log"
