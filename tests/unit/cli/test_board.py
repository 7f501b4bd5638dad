"""A build on a terminal: what runs, live."""

from tests.kit.shown import told


def test_a_terminal_shows_what_runs_and_keeps_what_failed() -> None:
    shown = told(terminal=True, wait=0.15)
    for words in ("a@x one: load", "b@x two: compile 0 s set 1 of 2", "1 of 2 groups, 1 failed"):
        assert words in shown
    assert "a@x: failed\n" in shown and "b@x: built\n" not in shown
    last = shown.rpartition("b@x two: compile")[2]
    assert "one" not in last, "a stage that has ended is still shown"
