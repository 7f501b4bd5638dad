"""Line coverage of every process of `make test`, printed by room; `make coverage` runs it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from pathlib import Path
from typing import Final

from scripts import coverage_start

ROOT: Final = Path(__file__).parent.parent
_FOLDER: Final = ROOT / "build" / "coverage"
_STARTED: Final = Path(sysconfig.get_path("purelib")) / "zz-measured.pth"
_START: Final = (
    f"import os, runpy; name = {coverage_start.VARIABLE!r}; "
    "name in os.environ and runpy.run_path(os.environ[name])\n"
)


def main() -> int:
    """Run the tests that the arguments of pytest select, and print the table."""
    shutil.rmtree(_FOLDER, ignore_errors=True)
    _FOLDER.mkdir(parents=True)
    data = {**os.environ, "COVERAGE_FILE": str(_FOLDER / "data")}
    variables = {
        **data,
        coverage_start.VARIABLE: str(Path(coverage_start.__file__).resolve()),
        "COVERAGE_PROCESS_START": str(ROOT / "pyproject.toml"),
    }
    _STARTED.write_text(_START, encoding="utf-8")
    try:
        tests = subprocess.run([sys.executable, "-m", "pytest", *sys.argv[1:]], env=variables)
    finally:
        _STARTED.unlink()
    report = _FOLDER / "lines.json"
    for command in (["combine", "--quiet", str(_FOLDER)], ["json", "--quiet", "-o", str(report)]):
        subprocess.run([sys.executable, "-m", "coverage", *command], cwd=ROOT, env=data, check=True)
    print(table(report))
    return tests.returncode


def table(report: Path) -> str:
    """Return lines of the form `room, statements, executed, percent` of a report of coverage.py."""
    statements: Counter[str] = Counter()
    executed: Counter[str] = Counter()
    for name, file in json.loads(report.read_text(encoding="utf-8"))["files"].items():
        parts = Path(name).relative_to(Path("pipeline") / "epctx").parts
        for room in (parts[0].removesuffix(".py"), "all"):
            statements[room] += file["summary"]["num_statements"]
            executed[room] += file["summary"]["covered_lines"]
    return "\n".join(
        f"{room:15} {number:6} {executed[room]:6} {executed[room] / number:6.1%}"
        for room, number in sorted(statements.items(), key=lambda each: (each[0] == "all", each))
        if number
    )


if __name__ == "__main__":
    sys.exit(main())
