"""`epctx env`, and the warning of a variable that nobody reads."""

import json

import pytest
from typer.testing import CliRunner

from epctx.cli.app import app

runner = CliRunner()


def test_env_lists_what_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", "/caches/mine")
    lines = runner.invoke(app, ["env"]).stdout.splitlines()
    assert any(line.startswith("EPCTX_CACHE_DIR") and "/caches/mine" in line for line in lines)
    assert any(line.startswith("EPCTX_HIDE_DEVICES") and "not set" in line for line in lines)
    found = json.loads(runner.invoke(app, ["env", "--format", "json"]).stdout)
    assert {"name", "value", "default", "meaning"} == set(found[0])


def test_a_variable_that_nobody_reads_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_HIDE_DEVICE", "QNNExecutionProvider")
    result = runner.invoke(app, ["schema"])
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: EPCTX_HIDE_DEVICE is not a variable of epctx\n"
        '  -> did you mean "EPCTX_HIDE_DEVICES"? (`epctx env` lists them)\n'
    )
    assert runner.invoke(app, ["schema", "-q"]).stderr == ""
