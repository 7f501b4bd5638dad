"""Starts line coverage in each process of `make coverage`, before anything else is imported.

A `.pth` file of the environment runs this file where the variable `MEASURED_BY` names it. Workers
get few variables, so each measured process hands its own ones on to all that it starts.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any

import coverage

VARIABLE = "MEASURED_BY"
"""Path of this file."""
_HANDED_ON = (VARIABLE, "COVERAGE_PROCESS_START", "COVERAGE_FILE")


def start() -> None:
    """Measure this process and, by their environment, those that it starts."""
    own = {name: os.environ[name] for name in _HANDED_ON}
    popen = subprocess.Popen.__init__

    def measured(self: Any, *arguments: Any, **rest: Any) -> None:
        if rest.get("env") is not None:
            rest["env"] = {**rest["env"], **own}
        popen(self, *arguments, **rest)

    setattr(subprocess.Popen, "__init__", measured)  # noqa: B010 - mypy refuses an assignment
    coverage.process_startup()


if __name__ == "<run_path>":
    start()
