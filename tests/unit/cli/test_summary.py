"""What a build prints at its end."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from epctx.cache.action import Origin, RemoteReport
from epctx.cli.render import UI
from epctx.cli.summary import failures, summary
from epctx.engine.report import ActionReport, BuildReport, GroupReport, Host, StageTime
from epctx.error_codes import Code
from epctx.errors import Failure
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.graph.model import Decline, PassRecord, Placement
from epctx.manifest import Tolerance
from epctx.stages.report import ModelReport, PartitionReport
from epctx.verification.findings import Comparison, Finding, FolderReport, OutputNumbers

ZERO = Digest(algorithm="sha256", hex="0" * 64)
UNCHECKED = Finding(
    "numbers", "outputs", "m_ctx.onnx", "not checkable", "no device", "check it there"
)
PASSED = replace(UNCHECKED, outcome="pass", message="fine", remedy="")


def numbers(max_rel: float | None, max_abs: float = 0.5) -> OutputNumbers:
    return OutputNumbers(
        model="m_ctx.onnx",
        output="y",
        input_set="seed 0, set 0",
        sessions="files",
        comparison=Comparison(dtype="float32", shape=(1,), max_rel=max_rel, max_abs=max_abs),
        tolerance=Tolerance(),
        passed=True,
    )


def built(
    name: str, *found: Finding, compared: Sequence[OutputNumbers] = (), nodes: int = 3
) -> GroupReport:
    decline = [
        Decline(node=f"n{k}", op_type="TopK", domain="", reasons=(("htp", "dynamic"),))
        for k in range(5)
    ]
    return GroupReport(
        target="default",
        group=name,
        state="built",
        folder=f"m/default/{name}",
        files=(OutputFile(name="m_ctx.onnx", size=1500, sha256=ZERO, blake3=ZERO),),
        models=(
            ModelReport(
                name="m",
                passes=(
                    PassRecord(name="fold_constants", changed={"folded": 2}),
                    PassRecord(name="remove_dead_code"),
                ),
                nodes=8,
                coverage=nodes / 8,
                partitions=(PartitionReport(provider="htp", nodes=nodes, inputs=(), outputs=()),),
                declined=tuple(decline),
            ),
        ),
        verify=FolderReport(folder="x", findings=(PASSED, *found), numbers=tuple(compared)),
        stages=(
            StageTime(stage="load", subject="m", start=0, end=1),
            StageTime(stage="compile", subject="m", start=1, end=3),
            StageTime(stage="compile", subject="n", start=1, end=3.5),
        ),
        peak_memory=120_000_000,
    )


def failed(name: str, why: str = "because") -> GroupReport:
    failure = Failure(
        kind="CompileError",
        exit_code=6,
        code=Code.CRASHED,
        what="crashed",
        where="model m",
        why=why,
        remedy="report",
    )
    return GroupReport(target="default", group=name, state="failed", failure=failure)


def shown(
    *groups: GroupReport,
    width: int = 10_000,
    verbose: int = 0,
    remote: RemoteReport | None = None,
) -> list[str]:
    report = BuildReport(
        schema_version=1,
        epctx="0",
        name="m",
        started="",
        seconds=2.04,
        host=Host(system="", machine="", python="", packages={}),
        groups=groups,
        remote=remote,
    )
    stream = io.StringIO()
    ui = UI(verbose=verbose)
    ui.out = Console(file=stream, width=width, soft_wrap=width > 1000)
    summary(ui, report, Path("dist"))
    return stream.getvalue().splitlines()


@pytest.fixture(autouse=True)
def report_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The written report, in the working folder."""
    monkeypatch.chdir(tmp_path)
    Path("dist").mkdir()
    Path("dist/m.build.json").touch()
    return Path("dist/m.build.json")


def test_what_came_from_the_shared_cache_is_told() -> None:
    action = ActionReport.of("compile", "m", None, Origin(remote="s3://b", signer="ci-1"))
    group = replace(built("one"), actions=(action,))
    assert not any("remote" in line for line in shown(group))
    told = shown(group, remote=RemoteReport(url="s3://b", records=1, objects=2, fetched=3000))
    assert any(line.startswith("one@") and "1 remote" in line for line in told)
    assert "shared cache s3://b: 1 result and 2 files (3.0 kB) came from it" in told


def test_a_row_a_group() -> None:
    table = shown(built("one", compared=[numbers(1.2e-4), numbers(2e-5)]), built("another"))
    assert table[0] == "group            state  models  files    size  on EPs  checks  max error"
    assert table[2] == "one@default      built       1      1  1.5 kB     3/8    1 ok    1.2e-04"
    assert table[3] == "another@default  built       1      1  1.5 kB     3/8    1 ok    not run"
    assert table[4:] == [
        "on the default EP: one@default, another@default: 5 TopK (htp: dynamic)",
        "dist/m/  in 2.0 s; report: dist/m.build.json",
    ]


def test_what_the_published_files_are_made_of_is_in_the_row() -> None:
    group = built("one")
    placed = Placement(context_nodes=37, default_nodes=36, crossings=71)
    group = replace(group, models=(replace(group.models[0], placement=placed),))
    head, _, row = shown(group)[:3]
    assert dict(zip(re.split(r"  +", head), re.split(r"  +", row), strict=True)) == {
        "group": "one@default",
        "state": "built",
        "models": "1",
        "files": "1",
        "size": "1.5 kB",
        "on EPs": "3/8",
        "EPContext": "37",
        "default EP": "36",
        "crossings": "71",
        "checks": "1 ok",
        "max error": "not run",
    }


def test_the_most_frequent_ops_on_the_default_ep_are_told_and_the_rest_is_counted() -> None:
    group = built("one")
    decline = tuple(
        Decline(node=f"{op}{k}", op_type=op, domain="", reasons=(("htp", "why"),))
        for op, count in {"A": 1, "B": 4, "C": 3, "D": 2}.items()
        for k in range(count)
    )
    group = replace(group, models=(replace(group.models[0], declined=decline),))
    assert shown(group)[3] == (
        "on the default EP: one@default: 4 B (htp: why), 3 C (htp: why), 2 D (htp: why) "
        "and 1 more, see -v"
    )


def test_a_build_with_nothing_to_do_says_first_that_numbers_were_not_run() -> None:
    device = replace(UNCHECKED, policy="compatibility", check="devices", message="no NPU")
    left_out = replace(UNCHECKED, message="not checked: --no-verify")
    group = replace(built("one", device, left_out), state="up to date", stages=())
    lines = shown(group)
    assert lines[0].startswith("nothing to do")
    told = "not checked: one@default: numbers not run: --no-verify (and 1 more, see -v)"
    assert lines[2:] == [told]


def for_targets(*targets: str) -> list[GroupReport]:
    return [
        replace(group, target=target)
        for target in targets
        for group in (built("one", compared=[numbers(1.2e-4)]), built("another"))
    ]


def test_several_groups_for_several_targets_are_a_table_of_both() -> None:
    x, y = for_targets("x", "y")[:3], replace(failed("another"), target="y")
    assert [line.rstrip() for line in shown(*x, y)] == [
        "group    x              y",
        "─────────────────────────────────────",
        "one      built          built",
        "         1.5 kB, 3/8    1.5 kB, 3/8",
        "         1 ok, 1.2e-04  1 ok, 1.2e-04",
        "another  built          failed",
        "         1.5 kB, 3/8",
        "         1 ok, not run",
        "on the default EP: one@x, another@x and 1 more: 5 TopK (htp: dynamic)",
        "dist/m/  in 2.0 s; report: dist/m.build.json",
    ]


@pytest.mark.parametrize(
    ("compared", "words"),
    [(numbers(0.0, 0.0), "0"), (numbers(None, 0.0), "0"), (numbers(None, 0.25), "2.5e-01")],
)
def test_an_error_without_a_magnitude_to_compare_with(compared: OutputNumbers, words: str) -> None:
    assert shown(built("one", compared=[compared]))[2].split()[-1] == words


def test_what_was_not_checked_is_told_once_with_what_to_do() -> None:
    lines = shown(*(built(name, UNCHECKED) for name in ("a", "b", "c")))
    assert lines[-3:-1] == [
        "not checked: a@default/m_ctx.onnx, b@default/m_ctx.onnx and 1 more: no device",
        "  -> check it there",
    ]


def test_headroom_is_told_though_it_passed() -> None:
    note = Finding("numbers", "headroom", "m_ctx.onnx", "pass", "'h' overflows", "scale it down")
    lines = shown(built("a", note))
    assert lines[-3:-1] == ["headroom: a@default/m_ctx.onnx: 'h' overflows", "  -> scale it down"]


def test_a_build_that_published_nothing_says_so() -> None:
    lines = shown(failed("a"))
    assert [line.split() for line in lines[:3:2]] == [["group", "state"], ["a@default", "failed"]]
    assert lines[-1] == "nothing was published, in 2.0 s; report: dist/m.build.json"


def test_a_report_that_a_full_disk_did_not_take_is_not_named(report_file: Path) -> None:
    report_file.unlink()
    assert shown(failed("a"))[-1].endswith("in 2.0 s; the report could not be written")


def test_a_long_name_is_folded_never_cut() -> None:
    name = "a-group-with-quite-a-long-name-that-does-not-fit"
    lines = shown(built(name, compared=[numbers(0.5)]), width=80)
    assert max(map(len, lines)) <= 80
    cells = lines[2 : lines.index(next(line for line in lines if line.startswith("on the")))]
    assert "".join(line.split()[0] for line in cells) == f"{name}@default"


def test_every_column_has_room_on_80_columns() -> None:
    lines = shown(built("group", compared=[numbers(0.5)]), failed("b"), width=80)
    assert "max error" in lines[0] and "5.0e-01" in lines[2]


def test_with_v_passes_declined_nodes_numbers_and_times_are_told() -> None:
    lines = shown(built("g", compared=[numbers(0.5)]), verbose=1)[3:-1]
    assert lines == [
        "g@default/m",
        "  pass fold_constants: 2 folded",
        "  htp: 3 nodes in one partition",
        "  default EP: TopK 'n0', TopK 'n1', TopK 'n2' and 2 more (htp: dynamic)",
        "  m_ctx.onnx: output 'y' (seed 0, set 0, generated, files, against the source model): "
        "abs 0.5, rel 0.5, could have failed 0",
        "  g@default: load 1.0 s, compile 4.5 s; largest process 120.0 MB",
    ]


def test_a_failure_of_several_groups_is_one_error() -> None:
    report = BuildReport(
        schema_version=1,
        epctx="0",
        name="m",
        started="",
        seconds=1,
        host=Host(system="", machine="", python="", packages={}),
        groups=(failed("a"), built("b"), failed("c"), failed("d", "it is another")),
    )
    told = [str(error) for error in failures(report)]
    assert told == [
        "a@default, c@default: model m: crashed: because\n  -> report",
        "d@default: model m: crashed: it is another\n  -> report",
    ]
