"""Completion in the shells themselves, with what `--install-completion` gives them."""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kit.command_line import environment

BIN = Path(sys.executable).parent
SECONDS = 30
"""What a completion may take at most: a process of Python's, on a busy machine."""


def variables(home: Path) -> dict[str, str]:
    """A new user's environment, with this epctx."""
    return environment(HOME=str(home), PATH=f"{BIN}{os.pathsep}{os.environ['PATH']}", TERM="dumb")


def script(shell: str, home: Path) -> Path:
    """The completion of epctx for a shell, as it is installed."""
    asked = variables(home) | {"_EPCTX_COMPLETE": f"source_{shell}"}
    made = subprocess.run(["epctx"], env=asked, capture_output=True, check=True)
    path = home / f"epctx.{shell}"
    path.write_bytes(made.stdout)
    return path


@pytest.mark.needs("program fish")
@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("epctx bui", "build\t"),
        ("epctx build --keep", "--keep-going\t"),
        ("epctx schema l", "lock\n"),
        ("epctx explain E13", "E1300\n"),
    ],
)
def test_fish(tmp_path: Path, line: str, word: str) -> None:
    command = f"source {script('fish', tmp_path)}; complete -C '{line}'"
    ran = subprocess.run(
        ["fish", "--no-config", "-c", command],
        env=variables(tmp_path),
        capture_output=True,
        text=True,
        check=True,
    )
    assert word in ran.stdout


@contextmanager
def terminal(home: Path) -> Iterator[int]:
    """A zsh on a terminal; its end that a user has."""
    import pty

    process, end = pty.fork()
    if process == 0:
        os.chdir(home)
        os.execvpe("zsh", ["zsh", "-f", "-i"], variables(home))
    try:
        yield end
    finally:
        os.close(end)
        os.waitpid(process, 0)


def read(end: int, wanted: bytes) -> bytes:
    """What the shell shows, until it has shown what is wanted."""
    seen, until = b"", time.monotonic() + SECONDS
    while wanted not in seen and time.monotonic() < until:
        if select.select([end], [], [], 0.1)[0]:
            seen += os.read(end, 65536)
    return seen


@pytest.mark.needs("program zsh")
@pytest.mark.parametrize(
    ("line", "completed"),
    [
        (b"epctx bui", b"epctx build "),
        (b"epctx build --keep", b"epctx build --keep-going "),
        (b"epctx explain E13", b"epctx explain E1300"),
    ],
)
def test_zsh(tmp_path: Path, line: bytes, completed: bytes) -> None:
    path = script("zsh", tmp_path)
    with terminal(tmp_path) as end:
        os.write(end, b"autoload -Uz compinit; compinit -D -u; source %b\n" % os.fsencode(path))
        os.write(end, b"print ready | tr a-z A-Z\n")
        assert b"READY" in read(end, b"READY")
        os.write(end, line + b"\t\t")
        assert completed in read(end, completed)
