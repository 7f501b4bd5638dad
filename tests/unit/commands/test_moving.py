"""Files move beside each other; the first that fails ends the others."""

import threading

import pytest

from epctx.commands.moving import Moving
from epctx.oci.artifact import blob_of
from epctx.transfer.attempts import StoreError


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
