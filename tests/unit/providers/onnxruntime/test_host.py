from __future__ import annotations

import os
import threading

import pytest

from epctx.providers.onnxruntime import host


@pytest.mark.needs("affinities", "no affinities here")
def test_one_core_while_it_lasts_and_for_threads_begun_meanwhile() -> None:
    before = os.sched_getaffinity(0)
    seen: list[set[int]] = []
    with host.one_core():
        thread = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        thread.start()
        thread.join()
        assert len(os.sched_getaffinity(0)) == 1
    assert [len(cores) for cores in seen] == [1]
    assert os.sched_getaffinity(0) == before


@pytest.mark.needs("affinities", "no affinities here")
def test_each_place_has_a_core_of_its_own_while_there_are_enough(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    given: list[int] = []
    for place in range(len(allowed) + 1):
        monkeypatch.setenv(host.PLACE, str(place))
        with host.one_core():
            given += os.sched_getaffinity(0)
    assert given == [*allowed, allowed[0]]
