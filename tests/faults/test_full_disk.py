"""A disk that is full from the n-th call on that needs room, or broken at the n-th call, and a kill
before the n-th rename: for every n of a build.

Whatever n is: exit 9 with a remedy, what was published is as it was, or is the new whole, and the
cache serves the next build, which makes what it would have made. What cannot be read is blamed on
what it is: exit 3 of a manifest, 4 of a source, 7 of what was built; a cache is done without.
"""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from epctx.cache import Cache, Location
from epctx.cache.maintenance import check
from epctx.files import identity
from epctx.files.digest import of_bytes
from tests.faults import full_disk
from tests.faults.full_disk import Ended, Room
from tests.kit.projects import Project, make

SMALL = 8 << 20
pytestmark = pytest.mark.needs("a C compiler", "needs Linux and a C compiler")


class Template:
    """A project that was built, and then edited; and what a build of it makes of each group."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        room = Room(folder=folder / "template")
        patch.setenv("EPCTX_CACHE_DIR", str(room.cache))
        made = make(room.project, {"g": ["a", "b"], "h": ["c"]}, verify={"inputs": {"count": 1}})
        made.build()
        self.old = made.files()
        made.edit("c", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
        self.document = made.document
        self.library = full_disk.library(folder)
        (whole,) = self.rooms(["whole"])
        (self.whole,) = full_disk.build_inline([(whole, 0)], library=self.library)
        assert self.whole.code == 0, self.whole.said
        self.new = self.project(whole).files()

    def rooms(self, names: Iterable[str]) -> list[Room]:
        """Copies of the template that have settled: until then a build remembers less of them, and
        makes fewer calls.
        """
        made = []
        for name in names:
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.folder))
            shutil.copytree(self.folder / "template", folder, dirs_exist_ok=True)
            made.append(Room(folder=folder))
        files = [path for room in made for path in room.folder.rglob("*") if path.is_file()]
        while not all(identity.of_path(path).settled for path in files):
            time.sleep(0.1)
        return made

    def project(self, room: Room) -> Project:
        return Project(folder=room.project, document=self.document)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Template]:
    with pytest.MonkeyPatch.context() as patch:
        yield Template(tmp_path_factory.mktemp("disk"), patch)


def hold(
    template: Template, room: Room, ended: Ended, number: int, error: int = errno.ENOSPC
) -> bool:
    """What must hold after a build that found the disk full, or a quota reached; whether it did: a
    slow machine writes at once what a quick one writes together, so the number of calls varies.
    """
    story = f"full at call {number} of {ended.calls}: exit {ended.code}\n{ended.said}"
    if ended.calls < number:
        assert ended.code == 0, story
        return False
    assert ended.code == 9, story
    assert "Traceback" not in ended.said and "a bug in epctx" not in ended.said, story
    # The system refuses; or it was told before an EP began that there would not be room.
    words = (os.strerror(error), " of disk are needed, ")
    assert any(each in ended.said for each in words), story
    assert "\n  -> free some space" in ended.said, story
    hold_published(template, room, story)
    allowed = {"m", "m.build.json", ".m.lock", ".m.record.json", "m.logs", "m.staging"}
    left = {path.name for path in (room.project / "dist").iterdir()}
    assert {
        name for name in left if not name.startswith((".m.build.json.", "..m.record.json."))
    } <= allowed, story
    return True


def hold_published(template: Template, room: Room, story: str, *, absent: bool = False) -> None:
    """Each group is the old or the new whole; `absent`: or it is about to be put back."""
    for group in ("g/", "h/"):
        found, *wholes = (
            {name: data for name, data in files.items() if name.startswith(group)}
            for files in (template.project(room).files(), template.old, template.new)
        )
        assert found in wholes or (absent and not found), story


def recovered(template: Template, room: Room, again: Ended, number: int) -> None:
    """What must hold after the next build, with room on the disk."""
    story = f"after one that was full at call {number}\n{again.said}"
    assert again.code == 0, story
    assert template.project(room).files() == template.new, story
    left = sorted(path.name for path in (room.project / "dist").iterdir())
    assert [name for name in left if name != "m.logs"] == [
        ".m.lock",
        ".m.record.json",
        "m",
        "m.build.json",
    ], story
    checked = check(Cache(Location(folder=room.cache), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0), story


def sweep(
    template: Template, numbers: Sequence[int], errors: Sequence[int] = (errno.ENOSPC,)
) -> None:
    rooms = list(zip(template.rooms(f"n{number}" for number in numbers), numbers, strict=True))
    ends = full_disk.build_inline(rooms, library=template.library, errors=errors)
    refused = [
        hold(template, room, ended, number, error)
        for (room, number), ended, error in zip(rooms, ends, itertools.cycle(errors), strict=False)
    ]
    assert sum(refused) > len(rooms) / 2, [ended.calls for ended in ends]
    ends = full_disk.build_inline([(room, 0) for room, _ in rooms], library=template.library)
    for (room, number), ended in zip(rooms, ends, strict=True):
        recovered(template, room, ended, number)
    calls = template.whole.calls
    print(f"\ndisk full at {sum(refused)} of {calls} calls of a build: exit 9 each time")


def test_a_build_needs_room_many_times(template: Template) -> None:
    assert template.whole.calls > 100


def test_a_sample(template: Template) -> None:
    """At the beginning, in the middle, and in the publication, which is the last calls."""
    calls = template.whole.calls
    sweep(template, (5, calls // 2, calls - 7, calls - 3, calls), (errno.ENOSPC, errno.EDQUOT))


@pytest.mark.soak
def test_every_call(template: Template) -> None:
    sweep(template, range(1, template.whole.calls + 1))


def broken(template: Template, numbers: Sequence[int]) -> list[int]:
    """Build on a disk that is broken at each call; check, build again; exit codes."""
    rooms = list(zip(template.rooms(f"b{number}" for number in numbers), numbers, strict=True))
    ends = full_disk.build_inline(rooms, library=template.library, errors=(errno.EIO,))
    again = full_disk.build_inline([(room, 0) for room, _ in rooms], library=template.library)
    for (room, number), ended, after in zip(rooms, ends, again, strict=True):
        story = f"broken at call {number} of {ended.calls}: exit {ended.code}\n{ended.said}"
        assert ended.code in (0, 3, 4, 7, 9), story
        assert "Traceback" not in ended.said and "a bug in epctx" not in ended.said, story
        if ended.code:
            # SQLite has words of its own, and onnxruntime none for why it could not read a file.
            words = ("disk I/O error", "database disk image is malformed", "ONNX Runtime")
            assert any(each in ended.said for each in (os.strerror(errno.EIO), *words)), story
            assert "\n  -> " in ended.said, story
            assert "[Errno" not in ended.said and "None" not in ended.said, story
        recovered(template, room, after, number)
    return [ended.code for ended in ends]


def calls_of(template: Template, error: int) -> int:
    (room,) = template.rooms([f"calls{error}"])
    (counted,) = full_disk.build_inline(
        [(room, 1 << 30)], library=template.library, errors=(error,)
    )
    assert counted.code == 0, counted.said
    return counted.calls


def test_a_disk_that_is_broken_in_one_place(template: Template) -> None:
    calls = calls_of(template, errno.EIO)
    assert calls > 200, "what reads is not counted"
    # The manifest and the lock at first; then the cache, sources, what was optimized, the end.
    codes = broken(template, [2, 8, calls // 6, calls // 2, calls * 2 // 3, calls - 20])
    assert {0, 3, 9} <= set(codes)


@pytest.mark.soak
def test_a_disk_that_is_broken_in_any_place(template: Template) -> None:
    codes = broken(template, range(1, calls_of(template, errno.EIO) + 1))
    assert set(codes) == {0, 3, 4, 7, 9}


def test_a_kill_between_each_two_renames(template: Template) -> None:
    """Publication is renames: of a group, of the record, the report and the lock."""
    renames = calls_of(template, full_disk.KILLED)
    assert renames >= 4
    numbers = range(1, renames + 1)
    rooms = list(zip(template.rooms(f"k{number}" for number in numbers), numbers, strict=True))
    ends = full_disk.build_inline(rooms, library=template.library, errors=(full_disk.KILLED,))
    between = []
    for (room, number), ended in zip(rooms, ends, strict=True):
        story = f"killed before rename {number} of {renames}\n{ended.said}"
        assert ended.code == -signal.SIGKILL, story
        hold_published(template, room, story, absent=True)
        between += [
            number for group in "gh" if not (room.project / f"dist/m/default/{group}").exists()
        ]
    assert len(between) == 1, "one group was built, and its swap is two renames"
    again = full_disk.build_inline([(room, 0) for room, _ in rooms], library=template.library)
    for (room, number), after in zip(rooms, again, strict=True):
        recovered(template, room, after, number)
        told = {name for name in template.new if not name.endswith("SHA256SUMS")}
        assert reported(room) == told, f"the report after rename {number} is of another build"


def reported(room: Room) -> set[str]:
    """The published files of which the report says the digests that they have."""
    report = json.loads((room.project / "dist/m.build.json").read_text(encoding="utf-8"))
    published = room.project / "dist/m/default"
    said = {
        f"{group['group']}/{file['name']}": file["blake3"]["hex"]
        for group in report["groups"]
        for file in group["files"]
    }
    return {
        name for name, hex in said.items() if of_bytes((published / name).read_bytes()).hex == hex
    }


def test_with_workers(template: Template) -> None:
    (room,) = template.rooms(["workers"])
    ended = full_disk.build(room, 70, library=template.library)
    assert hold(template, room, ended, 70)


@pytest.mark.soak
def test_every_tenth_call_with_workers(template: Template) -> None:
    (counting,) = template.rooms(["count"])
    calls = full_disk.build(counting, 0, library=template.library).calls
    numbers = range(3, calls + 1, 10)
    rooms = template.rooms(f"w{number}" for number in numbers)
    for room, number in zip(rooms, numbers, strict=True):
        hold(template, room, full_disk.build(room, number, library=template.library), number)
        (again,) = full_disk.build_inline([(room, 0)], library=template.library)
        recovered(template, room, again, number)


@contextmanager
def small_disk(template: Template, place: Path, free: int) -> Iterator[Room]:
    """A file system of its own with a room, and so many bytes free; beyond the block all is room.

    What a project takes there is the file system's business: the rest is filled up, not computed.
    """
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SMALL}", "none", place], check=True)
    try:
        shutil.copytree(template.folder / "template", place / "room")
        (place / "room" / "count").touch()
        with (place / "filling").open("wb") as filling:
            os.posix_fallocate(filling.fileno(), 0, shutil.disk_usage(place).free - free)
        yield Room(folder=place / "room")
    finally:
        subprocess.run(["umount", place], check=True)


@pytest.mark.soak
@pytest.mark.needs("root", "mounts a tmpfs")
def test_a_small_file_system(template: Template, tmp_path: Path) -> None:
    """A real one: what native libraries write without libc's calls runs out of room there too."""
    full = []
    for kilobytes in range(8, 1024, 12):
        place = tmp_path / f"disk{kilobytes}"
        with small_disk(template, place, kilobytes << 10) as room:
            ended = full_disk.build(room, 0, library=template.library)
            if ended.code:
                full.append(kilobytes)
                hold(template, room, ended, 0)
            (place / "filling").unlink()
            (again,) = full_disk.build_inline([(room, 0)], library=template.library)
            recovered(template, room, again, 0)
        if not ended.code:
            break
    print(f"\ndisk full with {', '.join(map(str, full))} KiB free: exit 9 each time")
    assert len(full) > 5 and not ended.code
