"""The process's shared workspace: a graph is in one place."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from epctx.providers.base import SharedContexts


def test_a_graph_moves_out_when_it_is_taken() -> None:
    shared = SharedContexts()
    shared.leave("g", "graph")
    assert shared.take("g") == "graph"
    assert shared.take("g") is None and len(shared) == 0


def test_what_is_there_already_stays() -> None:
    shared = SharedContexts()
    shared.leave("g", "first")
    shared.leave("g", "second")
    assert shared.take("g") == "first"


def test_the_last_session_clears_it_whatever_happens() -> None:
    shared = SharedContexts()
    with shared.session(last=False) as space:
        space.leave("g", 1)
    assert len(shared) == 1
    with pytest.raises(ZeroDivisionError), shared.session(last=True):
        raise ZeroDivisionError
    assert len(shared) == 0


def test_of_many_threads_one_takes_a_graph() -> None:
    shared = SharedContexts()
    for i in range(100):
        shared.leave(str(i), i)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda i: shared.take(str(i % 100)), range(800)))
    assert sorted(i for i in found if isinstance(i, int)) == list(range(100))


def test_one_session_loads_at_a_time() -> None:
    shared = SharedContexts()
    inside: list[int] = []
    most = []

    def load(i: int) -> None:
        with shared.session(last=False):
            inside.append(i)
            most.append(len(inside))
            inside.remove(i)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(load, range(200)))
    assert max(most) == 1
