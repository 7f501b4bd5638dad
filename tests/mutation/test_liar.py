"""Verdicts on an execution provider that lies, in many kinds of models.

`make soak` judges all kinds; docs/numbers.md has the whole table, which `table --write` makes.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import onnx
import pytest

from tests.kit.command_line import epctx
from tests.mutation import table
from tests.mutation.kinds import KINDS, prepared
from tests.mutation.liar.epctx_liar.faults import NAMES, OF_LATER_RUNS, OF_RUNS
from tests.mutation.table import LIMITS, Cell

LIAR = Path(__file__).parent / "liar"
SAMPLE = ("KP", "FA", "SG", "SM", "R6", "BF", "BO", "ST")
"""Kinds that are judged in a second."""
MANIFEST = """schema_version: 1
name: lies
models: {{m: {{path: m.onnx}}}}
execution_providers: {{liar: {{provider: LiarExecutionProvider, options: {{{options}}}}}}}
model_groups:
  g: {{models: [m], execution_providers: [liar], verify: {{inputs: {{count: {count}}}}}}}
"""


def build(folder: Path, options: str, count: int = 2) -> tuple[int, str]:
    """Build a model of keypoints with the liar; its exit code, and what it printed."""
    onnx.save(KINDS["KP"].model(), folder / "m.onnx")
    text = MANIFEST.format(options=options, count=count)
    (folder / "lies.yaml").write_text(text, encoding="utf-8")
    done = epctx("build", "lies.yaml", cwd=folder, PYTHONPATH=str(LIAR))
    return done.returncode, done.stdout + done.stderr


def test_a_lie_fails_the_build(tmp_path: Path) -> None:
    exit_code, printed = build(tmp_path, "fault: halved")
    assert exit_code == 7
    assert "relative error 0.5 > 5e-05" in printed and "E0704" in printed
    assert not list(tmp_path.glob("dist/**/*.onnx")), "nothing is published"


def test_a_lie_fails_verify(tmp_path: Path) -> None:
    exit_code, printed = build(tmp_path, "fault: none")
    assert exit_code == 0 and "verified" in printed
    (tmp_path / "lies.yaml").write_text(MANIFEST.format(options="fault: zeroed", count=2))
    unchecked = epctx("build", "lies.yaml", "--no-verify", cwd=tmp_path, PYTHONPATH=str(LIAR))
    assert unchecked.returncode == 0
    done = epctx(
        *("verify", "dist/lies", "--manifest", "lies.yaml"), cwd=tmp_path, PYTHONPATH=str(LIAR)
    )
    assert done.returncode == 7
    assert "it is zero throughout, and should not be" in done.stdout + done.stderr


@pytest.mark.parametrize(
    ("count", "where"), [(2, "seed 0, set 1: "), (1, "is what the run before gave")]
)
def test_an_output_of_the_first_run_is_told(tmp_path: Path, count: int, where: str) -> None:
    """By two input sets, or by the inputs that one is run between."""
    exit_code, printed = build(tmp_path, 'fault: "output of the first run"', count)
    assert exit_code == 7 and where in printed


@pytest.mark.parametrize("fault", [*OF_RUNS, *OF_LATER_RUNS])
def test_faults_of_later_runs_are_told_with_one_input_set(tmp_path: Path, fault: str) -> None:
    exit_code, printed = build(tmp_path, f'fault: "{fault}"', count=1)
    assert exit_code == 7 and "E0704" in printed


@pytest.mark.parametrize("limits", LIMITS)
def test_right_outputs_of_no_kind_fail(limits: table.Limits) -> None:
    for kind in KINDS:
        run = prepared(kind)
        findings, _ = table.judged(run, limits, list(run.outputs.values()))
        assert not [each for each in findings if each.outcome == "fail"], kind


@cache
def cells(kind: str) -> list[Cell]:
    """All cells of one column, once for a process."""
    return table.column(kind)


def missed(kind: str) -> list[str]:
    """List what is missed and must not be, with its effect and what allowed it."""
    return [
        f"{each.fault}, {each.limits}: {each.effect.task:.0%}; {each.found} ({each.allowed})"
        for each in cells(kind)
        if each.forbidden
    ]


def told(kind: str) -> dict[str, str]:
    """The column of a kind in docs/numbers.md, by fault."""
    text = table.PAGE.read_text(encoding="utf-8").partition(table.BEGIN)[2]
    text, end, _ = text.partition(table.END)
    assert end, "the page has the table between its marks"
    rows = [line.strip("| ").split(" | ") for line in text.strip().split("\n\n")[0].splitlines()]
    place = rows[0].index(kind)
    return {row[0]: row[place] for row in rows[2:]}


def found(kind: str) -> dict[str, str]:
    return {fault: letters for (fault, _), letters in table.words(cells(kind)).items()}


@pytest.mark.parametrize("kind", SAMPLE)
def test_nothing_that_harms_is_missed_in_a_sample(kind: str) -> None:
    assert not missed(kind)


@pytest.mark.parametrize("kind", SAMPLE)
def test_the_page_has_what_is_found_in_a_sample(kind: str) -> None:
    assert told(kind) == found(kind), "python -m tests.mutation.table --write"


@pytest.mark.soak
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SAMPLE])
def test_nothing_that_harms_is_missed(kind: str) -> None:
    assert not missed(kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SAMPLE])
def test_the_page_has_what_is_found(kind: str) -> None:
    assert told(kind) == found(kind), "python -m tests.mutation.table --write"


def test_each_fault_is_told_of_somewhere() -> None:
    """A fault that applies to no kind, or that nothing finds, tests nothing."""
    text = table.PAGE.read_text(encoding="utf-8")
    for fault in NAMES:
        row = next(line for line in text.splitlines() if line.startswith(f"| {fault} |"))
        assert "C" in row, fault
