"""Files move beside each other; the first that fails ends the others."""

import threading

import pytest

from epctx.commands.moving import Moving
from epctx.engine.events import Event
from epctx.oci.artifact import blob_of
from epctx.transfer.attempts import StoreError


def test_each_is_told_when_it_begins_and_when_it_is_done() -> None:
    told: list[Event] = []
    moving = Moving("m", "push", told.append)

    def work(path: str) -> int:
        moved = moving.begin(path, blob_of(b"content"))
        moved(3)
        moved(7)
        return len(path)

    assert moving.each(work, ["a", "bc"]) == {"a": 1, "bc": 2}
    for path in ("a", "bc"):
        mine = [each for each in told if each.subject == path]
        assert [each.state for each in mine] == ["running", "running", "done"]
        assert mine[0].stage == "push" and mine[0].detail == "0 of 7 B"


def test_the_first_that_fails_ends_the_others() -> None:
    moving = Moving("m", "pull", lambda event: None)
    begun, ended = threading.Event(), list[str]()

    def work(path: str) -> None:
        if path == "bad":
            begun.wait(10)
            raise ValueError(path)
        moved = moving.begin(path, blob_of(b"content"))
        begun.set()
        try:
            for _ in range(1000):
                moved(1)
                threading.Event().wait(0.01)
        except StoreError as error:
            ended.append(str(error))

    with pytest.raises(ValueError, match="bad"):
        moving.each(work, ["long", "bad"])
    assert ended == ["another file failed"]
