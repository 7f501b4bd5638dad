"""Each step in a process of its own, with an end: what crashes or hangs is a result."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
KEPT = 100_000
"""Characters of output that are kept, from the end."""


@dataclass(frozen=True)
class Ended:
    """How a process ended.

    Attributes:
        code: Its exit code; negative for a signal, None where its time was over.
        output: The end of what it wrote, to both streams.
        seconds: Wall time.
    """

    code: int | None
    output: str
    seconds: float


def run(
    command: Sequence[str],
    timeout: float,
    environment: Mapping[str, str] | None = None,
    folder: Path = ROOT,
) -> Ended:
    """Run `command` in a folder; end it and its children after `timeout` seconds."""
    start = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
    )
    try:
        written, _ = process.communicate(timeout=timeout)
        code: int | None = process.returncode
    except subprocess.TimeoutExpired:
        _end(process.pid)
        written, _ = process.communicate()
        code = None
    text = written.decode("utf-8", "replace")[-KEPT:]
    return Ended(code, text, round(time.monotonic() - start, 2))


def _end(pid: int) -> None:
    """End a process and what it started."""
    try:
        process = psutil.Process(pid)
        every = [*process.children(recursive=True), process]
    except psutil.NoSuchProcess:
        return
    for each in every:
        try:
            each.kill()
        except psutil.NoSuchProcess:
            continue


def python(module: str, *arguments: str, interpreter: str = sys.executable) -> list[str]:
    """The command that runs `module` with an interpreter."""
    return [interpreter, "-m", module, *arguments]
