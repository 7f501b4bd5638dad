"""docs/howto/upgrade.md shows what epctx prints after an upgrade of an EP.

There is one version of each EP here. So the lock is changed to that of an older one.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from tests.kit import pages
from tests.kit.command_line import epctx

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "upgrade.md"


def older(lock: str) -> str:
    """Return the lock as the version that the page names before the upgrade would have made it."""
    changed = re.sub(r'(onnxruntime-qnn: )"[\d.]+"', r'\1"2.6.0"', lock)
    libraries = (
        r"(onnxruntime-qnn/lib(?:QnnHtp|QnnSystem|onnxruntime_providers_qnn)\.so: blake3:)\w"
    )
    return re.sub(libraries, r"\1_", changed)


@pytest.mark.needs("module onnxruntime_qnn")
def test_a_locked_build_says_what_the_page_shows(tmp_path: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    shown = re.search(r"^\$ epctx build --locked\n(error.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert shown is not None
    init = next(line for line in pages.lines(text) if line.startswith("epctx init"))
    for arguments in (shlex.split(init)[1:], ["build"]):
        ran = epctx(*arguments, cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
    lock = tmp_path / "epctx.lock.yaml"
    now = lock.read_text(encoding="utf-8")
    lock.write_text(older(now), encoding="utf-8")
    ran = epctx("build", "--locked", cwd=tmp_path)
    assert ran.returncode == 8 and ran.stderr == shown[1]
    (tmp_path / "old.lock.yaml").write_text(older(now), encoding="utf-8")
    lock.write_text(now, encoding="utf-8")
    ran = epctx("diff", "old.lock.yaml", "epctx.lock.yaml", cwd=tmp_path)
    assert '  QNNExecutionProvider: onnxruntime-qnn: "2.6.0" is now "2.7.0"\n' in ran.stdout
