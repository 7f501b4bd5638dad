"""Each row of TABLE.md names a test that there is, and each file of this folder has a row."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
ROWS = re.findall(r"\| `(tests/\S+)::(test_\w+)` \|$", (HERE / "TABLE.md").read_text("utf-8"), re.M)


def test_each_row_has_its_test() -> None:
    lines = [
        line for line in (HERE / "TABLE.md").read_text("utf-8").splitlines() if line[:1] == "|"
    ]
    assert len(ROWS) == len(lines) - 2 > 20, "a row without a test"
    for file, name in ROWS:
        assert f"\ndef {name}(" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_each_file_of_faults_has_a_row() -> None:
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert files == {Path(file).name for file, _ in ROWS if file.startswith("tests/faults/")}
