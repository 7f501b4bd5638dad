"""`epctx` as users start it, in a process of its own."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
from pathlib import Path
from unittest import mock

from epctx.cli import arguments as typed
from epctx.cli.app import app
from epctx.parsing.schema import providers

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


def inside(*arguments: str | Path, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """As `epctx`, in this process and its workers: where the process is not what is tested.

    EPs that only `PYTHONPATH` has are not found in it.
    """
    words = typed.normal([str(each) for each in arguments])
    out, err = io.StringIO(), io.StringIO()
    terminated = signal.getsignal(signal.SIGTERM)
    code: object = 0
    with (
        contextlib.chdir(cwd),
        mock.patch.dict(os.environ, environment(**variables), clear=True),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            app(words, prog_name="epctx")
        except SystemExit as ended:
            code = ended.code
        finally:
            signal.signal(signal.SIGTERM, terminated)  # a build has its own
    exit_code = code if isinstance(code, int) else int(bool(code))
    return subprocess.CompletedProcess(words, exit_code, out.getvalue(), err.getvalue())


def forget_eps() -> None:
    """What was found of EPs, before packages came or went."""
    providers.find.cache_clear()
    providers._entry_points.cache_clear()
