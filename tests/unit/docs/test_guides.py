"""The written pages of docs/: what they count is right, and the files of CI systems are valid."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[3] / "docs"
_FILE = re.compile(r"^<!-- file: (\S+) -->\n```\w+\n(.*?)^```", re.MULTILINE | re.DOTALL)
FROM = {  # the page, what is before and after, of which lines are counted
    "onnxruntime-script": ("compile.py", "epctx.yaml"),
    "olive": ("recipe.json", "epctx.yaml"),
    "ep-weight-sharing": (None, "expected.yaml"),
}
CI = {
    "GitHub": "vendor.github-workflows",
    "GitLab": "vendor.gitlab-ci",
    "Azure": "vendor.azure-pipelines",
}


def lines(code: str) -> int:
    """Those that are not empty, nor a comment from their beginning."""
    return sum(bool(line.strip()) and line.lstrip()[0] != "#" for line in code.splitlines())


@pytest.mark.parametrize("name", FROM)
def test_lines_are_counted_rightly(name: str) -> None:
    text = (DOCS / "from" / f"{name}.md").read_text(encoding="utf-8")
    told = re.search(r"^\| lines \| (\d+) \| (\d+)\D", text, re.MULTILINE)
    assert told is not None
    files = dict(_FILE.findall(text))
    before, after = FROM[name]
    assert int(told[1]) == (lines(files[before]) if before else 1)
    assert int(told[2]) == lines(files[after])


def test_every_count_of_lines_is_checked() -> None:
    pages = (DOCS / "from").glob("*.md")
    counted = {page.stem for page in pages if "\n| lines |" in page.read_text(encoding="utf-8")}
    assert counted == set(FROM)


@pytest.mark.parametrize("system", CI)
def test_a_file_of_a_ci_system_is_valid(system: str, tmp_path: Path) -> None:
    text = (DOCS / "howto" / "ci.md").read_text(encoding="utf-8")
    found = re.search(rf"^## {system}\n.*?^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    file = tmp_path / "ci.yml"
    file.write_text(found[1], encoding="utf-8")
    checker = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", CI[system]]
    ran = subprocess.run([*checker, file], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
