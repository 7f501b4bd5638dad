"""A reader of outputs and a build that publishes them wait for each other, wherever it reads."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from epctx.engine.output.place import OutputPaths, undisturbed


@pytest.fixture
def place(tmp_path: Path) -> OutputPaths:
    made = OutputPaths(out=tmp_path / "dist", name="m.v1")
    made.group("default", "g").mkdir(parents=True)
    made.package.mkdir()
    made.archive.touch()
    with made.locked(lambda: None):
        pass
    return made


PLACES = [".", "..", "m.v1", "m.v1/default", "m.v1/default/g", "m.v1.ortpackage", "m.v1.tar"]


@pytest.mark.parametrize("path", PLACES)
def test_a_reader_waits_for_a_build(place: OutputPaths, path: str) -> None:
    waited: list[bool] = []
    read = threading.Event()

    def reads() -> None:
        with undisturbed([place.out / path], lambda: waited.append(True)):
            read.set()

    thread = threading.Thread(target=reads)
    with place.locked(lambda: None):
        thread.start()
        deadline = time.monotonic() + 300
        while not waited and time.monotonic() < deadline:
            time.sleep(0.01)
        assert waited == [True] and not read.is_set()
    thread.join(timeout=300)
    assert read.is_set()


@pytest.mark.parametrize("path", PLACES)
def test_a_build_waits_for_a_reader(place: OutputPaths, path: str) -> None:
    waited: list[bool] = []
    built = threading.Event()

    def builds() -> None:
        with place.locked(lambda: waited.append(True)):
            built.set()

    thread = threading.Thread(target=builds)
    with undisturbed([place.out / path], lambda: pytest.fail("nobody builds")):
        thread.start()
        deadline = time.monotonic() + 300
        while not waited and time.monotonic() < deadline:
            time.sleep(0.01)
        assert waited == [True] and not built.is_set()
    thread.join(timeout=300)
    assert built.is_set()


@pytest.mark.needs("POSIX", "Windows has no locks for readers")
def test_readers_do_not_wait_for_each_other(place: OutputPaths) -> None:
    def waits() -> None:
        pytest.fail("nobody builds")

    with undisturbed([place.out], waits), undisturbed([place.root], waits):
        pass


def test_a_copy_has_nobody_to_wait_for(place: OutputPaths, tmp_path: Path) -> None:
    shutil.copytree(place.root, tmp_path / "copy" / "m.v1")
    with place.locked(lambda: None), undisturbed([tmp_path / "copy"], lambda: pytest.fail("none")):
        pass


@pytest.mark.needs("POSIX", "pipes and links are others there")
@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_lock_is_not_waited_for(place: OutputPaths, make: object) -> None:
    path = place.out / ".m.v1.lock"
    path.unlink()
    assert callable(make)
    make(path)
    with undisturbed([place.root], lambda: pytest.fail("nobody builds")):
        pass
