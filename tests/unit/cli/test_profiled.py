"""`epctx build --profile`: what it tells, also of a build that fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.worker import sampling

pytestmark = pytest.mark.usefixtures("folder")


def test_a_build_that_fails_is_told_too(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["build", "bad.yaml", "--profile", "p.json"])
    assert result.exit_code == 3
    assert "profile: p.json; open it in https://ui.perfetto.dev" in result.stderr
    assert json.loads((tmp_path / "p.json").read_text(encoding="utf-8"))["traceEvents"]
    assert sampling.folder() is None


def test_a_file_that_cannot_be_written_is_told_at_once() -> None:
    result = CliRunner().invoke(app, ["build", "good.yaml", "--profile", "none/p.json"])
    assert result.exit_code == 2
    assert "none" in result.stderr
