"""Builds that at a chosen call find the disk full or broken, or are killed (`full_disk.c`)."""

from __future__ import annotations

import errno
import importlib
import itertools
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from unittest import mock

SOURCE = Path(__file__).with_suffix(".c")
KILLED = 0
"""In the place of an error: the build is killed just before that rename in the project."""
VARIABLES = ("LD_PRELOAD", "FULL_DISK_UNDER", "FULL_DISK_COUNT")
COMMAND = ("build", "m.yaml", "--jobs", "1")
_STAGES = ("epctx.stages.compile", "epctx.stages.optimize", "epctx.stages.verify")
_SLOW = ("onnx_ir", "onnxruntime", *_STAGES, "epctx.worker.listener")
"""Imported once before the forks: each of these would take more than a second for it."""
_WITH_WORKERS = f"""
import sys
from epctx.worker import process
process.KEPT_VARIABLES += {VARIABLES}  # workers write to the same disk
from epctx.cli.app import app
app(sys.argv[1:])
"""


@dataclass(frozen=True, kw_only=True)
class Room:
    """What one build has: a project in `folder / "p"`, its cache in `folder / "cache"`."""

    folder: Path

    @property
    def project(self) -> Path:
        """The folder of the manifest."""
        return self.folder / "p"

    @property
    def cache(self) -> Path:
        """Where `EPCTX_CACHE_DIR` points to."""
        return self.folder / "cache"

    @property
    def count(self) -> Path:
        """Where the calls are counted."""
        return self.folder / "count"

    @property
    def disk(self) -> str:
        """What is on the disk that becomes full: all that a build writes to."""
        return ":".join(map(str, (self.cache, self.project)))


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a build ended. `calls`: how many there were that a full disk may refuse."""

    code: int
    said: str
    calls: int


def possible() -> bool:
    """Whether this system can make such a disk."""
    return sys.platform == "linux" and shutil.which("cc") is not None


def library(folder: Path) -> Path:
    """Compile what is put before the system's calls."""
    made = folder / "full_disk.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(made)]
    subprocess.run([*command, str(SOURCE), "-ldl"], check=True)
    return made


def build(room: Room, full_at: int, *, library: Path) -> Ended:
    """Build with real workers, with the disk full from the call of that number on; 0: never."""
    full_from(room.count, full_at)
    run = subprocess.run(
        [sys.executable, "-c", _WITH_WORKERS, *COMMAND],
        cwd=room.project,
        env=os.environ
        | {"EPCTX_CACHE_DIR": str(room.cache)}
        | variables(room.disk, room.count, library),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
    return Ended(code=run.returncode, said=run.stdout.decode(), calls=calls(room.count))


def build_inline(
    rooms: Sequence[tuple[Room, int]], *, library: Path, errors: Sequence[int] = (errno.ENOSPC,)
) -> list[Ended]:
    """The same for many rooms, in seconds: forks of one process, with the workers' jobs inline.

    Args:
        errors: which one each room's calls end with, in turn; EIO is that of a
            broken disk, `KILLED` is none.
    """
    turns = zip(rooms, itertools.cycle(errors), strict=False)
    jobs = [(str(room.folder), full_at, error) for (room, full_at), error in turns]
    run = subprocess.run(
        [sys.executable, "-m", "tests.faults.full_disk"],
        cwd=Path(__file__).parents[2],
        env=os.environ | {"LD_PRELOAD": str(library)},
        input=json.dumps(jobs).encode(),
        stdout=subprocess.PIPE,
        check=True,
        timeout=1800,
    )
    return [Ended(**ended) for ended in json.loads(run.stdout)]


def full_from(count: Path, call: int, error: int = errno.ENOSPC) -> None:
    """Say in the file that processes count in from which call on the disk is full; 0: never."""
    what = {errno.EIO: 1, KILLED: 2}.get(error, 0)
    count.touch()
    with count.open("r+b") as file:  # processes have it mapped
        file.write(struct.pack("<IIII", 0, call, error, what))


def variables(disk: str, count: Path, library: Path) -> dict[str, str]:
    """Of a process for which what is below `disk`, folders with `:` between, is on such a disk."""
    return {
        "LD_PRELOAD": str(library),
        "FULL_DISK_UNDER": disk,
        "FULL_DISK_COUNT": str(count),
    }


def calls(count: Path) -> int:
    """How many there were that a full disk may refuse."""
    found, *_ = struct.unpack("<IIII", count.read_bytes())
    return int(found)


def _main() -> None:
    """Carry out the builds that stdin names, one fork each; their ends as JSON on stdout."""
    for slow in _SLOW:
        importlib.import_module(slow)
    ended = []
    for folder, full_at, error in json.loads(sys.stdin.buffer.read()):
        room = Room(folder=Path(folder))
        full_from(room.count, full_at, error)
        child = os.fork()
        if not child:
            # Of the renames those that publish: of a cache's entry there is one, and then it is.
            _build_inline(room, str(room.project) if error == KILLED else room.disk)
        _, status = os.waitpid(child, 0)
        said = (room.folder / "said").read_text(encoding="utf-8")
        code = os.waitstatus_to_exitcode(status)
        ended.append(asdict(Ended(code=code, said=said, calls=calls(room.count))))
    sys.stdout.write(json.dumps(ended))


def _build_inline(room: Room, under: str) -> None:
    import ctypes

    from epctx.cli.app import app
    from tests.kit.inline import Inline

    said = os.open(room.folder / "said", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.chdir(room.project)
    os.environ |= variables(under, room.count, Path()) | {"EPCTX_CACHE_DIR": str(room.cache)}
    ctypes.CDLL(None).epctx_full_disk_begin()
    code = 1
    try:
        with mock.patch("epctx.worker.pool.Worker", Inline):
            app([*COMMAND], prog_name="epctx")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()
