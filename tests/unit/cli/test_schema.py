"""`epctx schema`: what it prints, and where."""

import json

from typer.testing import CliRunner

from epctx.cli.app import app
from epctx.parsing.schema import apply as schemas

runner = CliRunner()


def test_schema_prints_it_and_nothing_else() -> None:
    result = runner.invoke(app, ["schema", "providers/ReferenceExecutionProvider"])
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == schemas.text("providers/ReferenceExecutionProvider")
    assert json.loads(result.stdout)["title"] == "Options of ReferenceExecutionProvider"


def test_schema_lists_what_there_is() -> None:
    result = runner.invoke(app, ["schema"])
    assert result.stdout.splitlines() == schemas.names()
    listed = runner.invoke(app, ["schema", "--format", "json"])
    assert json.loads(listed.stdout) == schemas.names()


def test_schema_helps_with_a_misspelt_name() -> None:
    result = runner.invoke(app, ["schema", "manifst"])
    assert result.exit_code == 2
    assert 'did you mean "manifest"?' in result.stderr
