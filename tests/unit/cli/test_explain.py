"""`epctx explain`: rendered on a terminal, Markdown in a pipe, JSON for programs."""

import json

from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.commands import explain
from epctx.error_codes import Code

runner = CliRunner()


def test_a_pipe_gets_the_page_as_it_is() -> None:
    result = runner.invoke(app, ["explain", "E0312"])
    assert (result.exit_code, result.stdout) == (0, explain.text("E0312"))


def test_a_terminal_gets_it_rendered() -> None:
    result = runner.invoke(app, ["explain", "E0312", "--color", "always"])
    assert result.exit_code == 0
    assert "\x1b[" in result.stdout and "## Cause" not in result.stdout
    assert "Cause" in result.stdout


def test_programs_get_its_sections() -> None:
    result = runner.invoke(app, ["explain", "E0312", "--format", "json"])
    found = json.loads(result.stdout)
    assert found["code"] == "E0312"
    assert set(found) == {"code", "title", "cause", "example", "remedy"}


def test_all_are_listed() -> None:
    listed = runner.invoke(app, ["explain"]).stdout
    assert all(f"{page.code}  {page.title}" in listed for page in explain.everything())
    found = json.loads(runner.invoke(app, ["explain", "--format", "json"]).stdout)
    assert [each["code"] for each in found] == sorted(Code)


def test_an_unknown_code_is_a_usage_error() -> None:
    result = runner.invoke(app, ["explain", "E9999"])
    assert result.exit_code == 2
    assert result.stderr.startswith('error[E0203]: there is no error code "E9999"')
