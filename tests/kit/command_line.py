"""`epctx` as users start it, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

KIT = Path(__file__).parent
FAULTY = KIT / "faulty"
"""An EP whose process crashes, hangs and so on, as its option says: for `PYTHONPATH`."""
VARYING = KIT / "varying"
"""An EP whose bytes depend on a circumstance that its option names: for `PYTHONPATH`."""
PROGRAM = (sys.executable, "-m", "epctx")
_SECONDS = 600
"""After which it hangs: it is killed, and the test fails."""
_TERMINAL = ("COLUMNS", "FORCE_COLOR", "NO_COLOR")


def environment(**variables: str) -> dict[str, str]:
    """This process's, without what it says of its terminal, and with `variables`."""
    kept = {name: value for name, value in os.environ.items() if name not in _TERMINAL}
    return kept | variables


def epctx(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder to its end, whatever its exit code; see `environment`."""
    return subprocess.run(
        [*PROGRAM, *map(str, arguments)],
        cwd=cwd,
        env=environment(**variables),
        capture_output=True,
        text=True,
        encoding="utf-8",
        timeout=_SECONDS,
        check=False,
    )
