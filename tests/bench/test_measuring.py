"""What the measurements say of themselves: spread, noise, memory, what was not measured."""

from __future__ import annotations

import pytest

from tests.bench import measuring
from tests.bench.measuring import Found, Row


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
