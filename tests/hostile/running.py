"""Carries out a row, and checks what must hold for every one of them."""

from __future__ import annotations

import contextlib
import fnmatch
import hashlib
import io
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from epctx.cli.app import app
from tests.hostile import project
from tests.hostile.table import Room, Row
from tests.kit import stores
from tests.kit.command_line import PROGRAM
from tests.kit.inline import Inline

ALLOWED = ("dist/m.build.json", "dist/m.logs/*", "dist/.m.lock", "dist/.m.record.json")
"""What a build that fails may leave: report, logs of workers that failed, the file of its lock."""
PUBLISHED = (*ALLOWED, "dist/m/*", "m.lock.yaml")
"""What one that succeeds may leave."""
_PATIENCE = 20
"""Wall time after which a command hangs, in its processor time."""
_CYCLE = re.compile(r"Cycle detected: .*")
"""ONNX Runtime begins to tell a cycle of functions with any of them."""
_NUMBERED = re.compile(
    r"(tmp|epctx-\w+-)[a-z0-9_]{8}\b|(/proc/)\d+|((?:action|object)s/)(?:[0-9a-f]{2}/)?[0-9a-f]{64}"
    r"|(\d of \d groups), \d+ s"
)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended. `seconds`: processor time of all processes. `memory`: the largest
    resident size of one process, in MiB, if known.
    """

    code: int
    out: str
    err: str
    seconds: float
    memory: int = 0


def room_in(folder: Path) -> Room:
    """A room in an empty folder."""
    project.copy(folder / "project")
    (folder / "outside").mkdir()
    (folder / "outside" / "secret").write_bytes(b"secret" * 4096)
    (folder / "temporary").mkdir()
    return Room(folder=folder / "project", outside=folder / "outside", cache=folder / "cache")


def carry_out(row: Row, folder: Path) -> str:
    """Make a row in the empty `folder`, run its command, check it; the first line that it said.

    Raises:
        AssertionError: something that is promised does not hold.
    """
    room = room_in(folder)
    row.make(room)
    before = _files(folder)
    children = set(psutil.Process().children(recursive=True))
    ended = _run(row, room)
    left = set(psutil.Process().children(recursive=True)) - children
    story = f"exit {ended.code} in {ended.seconds:.1f} s\n{ended.err}{ended.out}"
    assert ended.code == row.code, f"exit {ended.code}, not {row.code}\n{story}"
    for word in ("Traceback", "a bug in epctx"):
        assert word not in ended.out + ended.err, story
    assert row.says in ended.out + ended.err, f"does not say {row.says!r}\n{story}"
    assert ended.seconds < row.seconds, story
    assert ended.memory <= row.memory, f"{ended.memory} MiB\n{story}"
    assert not left, f"left processes {left}\n{story}"
    if row.code and row.command[0] != "verify":
        _has_a_remedy(ended.err, story)
    _left_nothing(row, room, before, story)
    if row.after is not None:
        row.after(room)
    return _first(row, ended, folder)


def _run(row: Row, room: Room) -> Ended:
    environment = {
        "EPCTX_CACHE_DIR": str(room.cache),
        "TMPDIR": str(room.folder.parent / "temporary"),
        **room.environment,
    }
    begun = _processor_seconds()
    if row.how == "process":
        code, out, err, memory = _in_a_process(row, room, environment)
    else:
        code, out, err = _in_this_process(row, room, environment)
        memory = 0
    seconds = _processor_seconds() - begun
    return Ended(code=code, out=out, err=err, seconds=seconds, memory=memory)


def _processor_seconds() -> float:
    """Return what this process and its ended children have used: other processes matter little."""
    return sum(os.times()[:4])


def _in_this_process(row: Row, room: Room, environment: Mapping[str, str]) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(room.folder),
        mock.patch.dict(os.environ, environment),
        mock.patch.object(tempfile, "tempdir", environment["TMPDIR"]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        _workers(row),
        stores.installed(),
    ):
        terminated = signal.getsignal(signal.SIGTERM)
        try:
            app(list(row.command), prog_name="epctx")
            code = 0
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
        finally:
            signal.signal(signal.SIGTERM, terminated)  # a build has its own
    return code, out.getvalue(), err.getvalue()


def _workers(row: Row) -> contextlib.AbstractContextManager[object]:
    if row.how == "workers":
        return contextlib.nullcontext()
    return mock.patch("epctx.worker.pool.Worker", Inline)


def _in_a_process(
    row: Row, room: Room, environment: Mapping[str, str]
) -> tuple[int, str, str, int]:
    outputs = room.folder.parent / "temporary"
    with (outputs / "out").open("w+b") as out, (outputs / "err").open("w+b") as err:
        process = subprocess.Popen(
            [*PROGRAM, *row.command],
            cwd=room.folder,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
        )
        watch = psutil.Process(process.pid)
        peak = 0
        deadline = time.monotonic() + _PATIENCE * row.seconds
        while process.poll() is None:
            peak = max(peak, _largest(watch))
            if time.monotonic() > deadline or peak > row.memory << 20:
                _end(watch)
            time.sleep(0.01)
        code = process.wait()
    texts = []
    for name in ("out", "err"):
        texts.append((outputs / name).read_text(encoding="utf-8", errors="replace"))
        (outputs / name).unlink()
    return code, texts[0], texts[1], peak >> 20


def _largest(process: psutil.Process) -> int:
    sizes = [0]
    with contextlib.suppress(psutil.Error):
        for each in (process, *process.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                sizes.append(each.memory_info().rss)
    return max(sizes)


def _end(process: psutil.Process) -> None:
    with contextlib.suppress(psutil.Error):
        for each in (*process.children(recursive=True), process):
            with contextlib.suppress(psutil.Error):
                each.kill()


def _has_a_remedy(err: str, story: str) -> None:
    """Each error is followed by what to do; usage errors of the command line point to its help."""
    assert re.search(r"^  -> \S|Try 'epctx", err, re.MULTILINE), f"no remedy\n{story}"


def _left_nothing(row: Row, room: Room, before: Mapping[str, str], story: str) -> None:
    root = room.folder.parent
    patterns = (*(PUBLISHED if row.code == 0 else ALLOWED), *row.leaves)
    changed = [
        name
        for name, what in _files(root).items()
        if before.get(name) != what
        and not _in_cache(name)
        and not any(fnmatch.fnmatch(name, f"project/{pattern}") for pattern in patterns)
    ]
    gone = [
        name
        for name in before.keys() - _files(root).keys()
        if not _in_cache(name)
        and not any(fnmatch.fnmatch(name, f"project/{pattern}") for pattern in row.leaves)
    ]
    assert not changed, f"left or changed {changed}\n{story}"
    assert not gone, f"removed {sorted(gone)}\n{story}"
    leftovers = [p for p in (room.cache / "v2" / "temporary").rglob("*") if p.is_file()]
    assert not leftovers, f"left in the cache: {leftovers}\n{story}"


def _in_cache(name: str) -> bool:
    return name.split("/")[0] == "cache"


def _files(root: Path) -> dict[str, str]:
    """All that is in a folder but folders, with what it is; nothing special is opened."""
    found = {}
    for path in _below(root):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            found[name] = f"link {path.readlink()}"
        elif path.is_file():
            found[name] = _content(path)
        else:
            found[name] = "special"
    return found


def _content(path: Path) -> str:
    status = path.stat()
    if status.st_size > 64 << 20 or not os.access(path, os.R_OK):  # sparse, of any size
        return f"{status.st_size} bytes, {status.st_mtime_ns}"
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):
        linked = [name for name in folders if (Path(folder) / name).is_symlink()]
        yield from (Path(folder) / name for name in (*names, *linked))


def _first(row: Row, ended: Ended, folder: Path) -> str:
    """What it said first, as a cell of the table: no path, no number of this run."""
    lines = [*ended.err.splitlines(), *ended.out.splitlines()]
    errors = [line.split(": ", 1)[1] for line in lines if line.startswith(("error[", "Error: "))]
    told = [line.strip() for line in lines if row.says in line]
    text = next(iter([*errors, *told]), row.says)
    for path in (folder / "project", folder):
        text = text.replace(f"{path.as_posix()}/", "").replace(path.as_posix(), "...")
    text = _CYCLE.sub("Cycle detected", text)
    text = _NUMBERED.sub(lambda found: f"{next(filter(None, found.groups()))}...", text)
    shown = "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)
    shown = shown.replace("|", "¦").replace("`", "'")
    return shown if len(shown) <= 240 else f"{shown[:239]}…"
