"""What the measurements say of themselves: spread, noise, memory, what was not measured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.bench import conftest, measuring
from tests.bench.measuring import Found, Row, ratio, wall

ROW = Row(what="ours", against="theirs", hold=2)


@pytest.fixture(autouse=True)
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measuring, "found", {})
    monkeypatch.setattr(measuring, "HELD", (Row(what="what nobody ran", against="x", hold=1),))


@pytest.mark.parametrize(
    ("pairs", "noise"),
    [
        ((1.0, 1.1, 1.2), 0.1 / 1.1),  # of few pairs all that was seen
        ((1.0, 9.0, 1.1, 1.2, 0.1, 1.1, 1.1, 1.1, 1.1), 0.1 / 1.1),  # of nine all but two
        ((3.0,) * 5, 0.0),
    ],
)
def test_noise_is_what_the_median_may_be_off(pairs: tuple[float, ...], noise: float) -> None:
    figure = sorted(pairs)[len(pairs) // 2]
    assert Found(figure=figure, pairs=pairs).noise == pytest.approx(noise, abs=1e-9)


def test_a_row_that_cannot_tell_a_change_says_so() -> None:
    steady = Found(figure=1.0, pairs=(0.99, 1.0, 1.01, 1.0, 1.0))
    assert steady.spread == "0.99..1.01, noise 1 %"
    shaky = Found(figure=1.0, pairs=(0.92, 1.0, 1.08, 1.0, 1.0))
    assert shaky.spread == "0.92..1.08, noise 8 %: no verdict on less"
    assert Found(figure=1.0).spread == "once"


def test_the_first_pair_does_not_count_and_the_others_are_in_turn() -> None:
    order: list[str] = []
    seconds = iter([100.0, 1.0, 1.5, 1.0, 1.6, 1.0, 1.7, 1.0])

    def run(which: str) -> float:
        order.append(which)
        return next(seconds)

    ratio(ROW, lambda: run("A"), lambda: run("B"), runs=3)
    assert "".join(order) == "ABABABAB"
    assert measuring.found[ROW].pairs == (1.5, 1.6, 1.7)
    (head, missing, line) = conftest.table()
    assert head.split()[:2] == ["what", "against"] and missing.endswith("not measured")
    assert " ".join(line.split()) == (
        "ours theirs ≤ 2 1.6 1.5..1.7, noise 6 %: no verdict on less ok"
    )


@pytest.mark.needs("Linux", "only Linux tells it")
def test_memory_is_that_of_all_processes_and_is_looked_at_once(tmp_path: Path) -> None:
    child = "import time; kept = b'x' * 50_000_000; time.sleep(0.5)"
    code = (
        f"import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {child!r}]); "
        f"{child}; p.wait()"
    )
    looked: list[bool] = []

    def ours() -> float:
        looked.append(measuring._peaks is not None)
        return wall([sys.executable, "-c", code if looked[-1] else "pass"], tmp_path)

    ratio(Row(what="ours", against="theirs"), ours, lambda: wall(["true"], tmp_path), runs=2)
    (found,) = measuring.found.values()
    assert looked == [True, False, False]
    assert found.memory is not None and 1e8 < found.memory < 2e8


def test_the_machine_has_a_name() -> None:
    assert "cores" in measuring.machine()
