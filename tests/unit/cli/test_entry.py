"""What is done before the command line is imported."""

from __future__ import annotations

import subprocess
import sys

import pytest

STARTED = """
import sys
from epctx.worker import spare
spare.start = lambda: print("typer" in sys.modules)
from epctx.cli import entry
sys.argv[1:] = {arguments!r}
entry.main()
"""


@pytest.mark.parametrize(
    ("arguments", "printed"),
    [
        (["build", "none.yaml"], ["False"]),
        (["-q", "build", "none.yaml"], ["False"]),
        (["build", "--dry-run", "none.yaml"], []),
        (["validate", "none.yaml"], []),
    ],
)
def test_a_build_starts_its_first_worker_before_all_else(
    arguments: list[str], printed: list[str]
) -> None:
    code = STARTED.format(arguments=arguments)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.returncode == 2 and "none.yaml: does not exist" in ended.stderr
    assert ended.stdout.split() == printed
