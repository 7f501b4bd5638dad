"""What every command shares: how errors, results and help look, and where they go."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any

import jsonschema
import pytest
import typer
from rich.table import Table
from typer.testing import CliRunner

from epctx.cli import progress
from epctx.cli.app import COMMANDS, app
from epctx.cli.render import UI, command
from epctx.engine.events import Event
from epctx.errors import CompileError, InvalidManifest, Violation
from epctx.parsing.schema import providers
from tests.kit.command_line import PROGRAM

runner = CliRunner()


def call(function: object, *arguments: str) -> tuple[int, str, str]:
    own = typer.Typer()
    own.command()(command(function))  # type: ignore[arg-type]
    result = runner.invoke(own, list(arguments))
    return result.exit_code, result.stdout, result.stderr


def fail(ui: UI) -> None:
    ui.emit({"partial": True})
    raise CompileError(
        "does not compile", where=f"{Path.cwd().as_posix()}/m.onnx", why="no", remedy="do it"
    )


def refuse(ui: UI) -> None:
    told = {"file": "m.yaml", "column": 1, "path": "name", "what": "is bad", "remedy": "mend it"}
    raise InvalidManifest([Violation(line=line, **told) for line in (1, 2)])  # type: ignore[arg-type]


def break_down(ui: UI) -> None:
    raise KeyError("surprise")


def run_out_of_memory(ui: UI) -> None:
    raise MemoryError


def interrupt(ui: UI) -> None:
    raise KeyboardInterrupt


def test_an_error_is_where_what_why_and_what_to_do() -> None:
    assert call(fail) == (6, "", "error[E0600]: m.onnx: does not compile: no\n  -> do it\n")


def test_every_violation_of_a_manifest_is_an_error_of_its_own() -> None:
    code, out, err = call(refuse)
    assert (code, out) == (3, "")
    assert err.splitlines() == [
        "error[E0300]: m.yaml:1:1: name: is bad",
        "  -> mend it",
        "error[E0300]: m.yaml:2:1: name: is bad",
        "  -> mend it",
    ]


def test_violations_are_in_the_json() -> None:
    code, out, _ = call(refuse, "--format", "json")
    error = json.loads(out)["error"]
    assert (code, error["exit_code"], error["type"]) == (3, 3, "InvalidManifest")
    assert [violation["line"] for violation in error["violations"]] == [1, 2]


def test_a_bug_names_its_log_and_shows_no_traceback() -> None:
    code, out, err = call(break_down)
    assert (code, out) == (1, "")
    assert "Traceback" not in err and "unexpected error, a bug in epctx: KeyError: " in err
    log = Path(err.strip().rpartition("log file ")[2])
    assert "Traceback" in log.read_text(encoding="utf-8")
    log.unlink()


def test_too_little_memory_is_no_bug() -> None:
    code, out, err = call(run_out_of_memory)
    assert (code, out) == (6, "")
    assert err.startswith("error[E0602]: this process got no more memory from the system\n  -> ")


def test_an_interrupt_is_130() -> None:
    assert call(interrupt)[0] == 130


def show(ui: UI, flag: Annotated[bool, typer.Option("--flag", help="A flag.")] = False) -> None:
    table = Table("a wide heading", "other", expand=True)
    table.add_row("x", "y" * 20_000)
    ui.print(table, "one")
    ui.note("beside")


def test_lines_in_a_log_are_whole_and_end_where_their_text_does() -> None:
    code, out, err = call(show)
    assert code == 0 and err == "beside\n"
    assert "y" * 20_000 in out and out.endswith("one\n")
    assert not [line for line in out.splitlines() if line != line.rstrip()]
    assert "\x1b" not in out + err


def test_quiet_says_nothing() -> None:
    assert call(show, "-q") == (0, "", "")


def test_colours_can_be_forced_into_a_log() -> None:
    assert "\x1b[1;31merror" in call(fail, "--color", "always")[2]
    assert "\x1b" not in call(fail, "--color", "never")[2]


def told(function: object, *arguments: str) -> list[dict[str, Any]]:
    """What a command prints as JSON lines, each as the schema has it."""
    schema = json.loads(providers.read_schema("events"))
    lines = call(function, *arguments, "--format", "jsonl")[1].splitlines()
    found = [json.loads(line) for line in lines]
    for each in found:
        jsonschema.validate(each, schema, cls=jsonschema.Draft202012Validator)
    return found


def happen(ui: UI) -> None:
    with progress.live(ui) as listener:
        listener(Event(group="g@default", state="running", subject="m", stage="compile"))
        listener(Event(group="g@default", state="verified"))
    ui.emit([1])


def test_events_are_lines_and_the_result_is_the_last() -> None:
    first, second, last = told(happen)
    assert first["event"] == {
        "group": "g@default",
        "state": "running",
        "subject": "m",
        "stage": "compile",
        "detail": None,
    }
    assert isinstance(first["seconds"], float) and "event" in second
    assert last == {"result": [1]}
    assert told(happen, "--quiet") == [{"result": [1]}]


def test_an_error_is_a_line_where_there_is_no_result() -> None:
    assert told(fail) == [{"result": {"partial": True}}]
    (line,) = told(refuse)
    assert line["error"]["code"] == "E0300" and len(line["error"]["violations"]) == 2


@pytest.mark.parametrize("name", [[], *([name] for name in COMMANDS), ["cache", "gc"]], ids=str)
def test_help_shows_no_type_for_a_flag(name: list[str]) -> None:
    out = runner.invoke(app, [*name, "--help"]).stdout
    assert "--help" in out and "<bool>" not in out
    assert ("<text|json|jsonl" in out) == (name not in ([], ["cache"], ["import"]))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name: str) -> None:
    result = runner.invoke(app, [name, "--help"])
    assert result.exit_code == 0 and "Usage: " in result.stdout


def test_a_reader_that_goes_away_is_no_error() -> None:
    process = subprocess.Popen(
        [*PROGRAM, "schema", "manifest"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=300) == 0


NOISY = """
import os
from epctx.cli.render import UI, Format
ui = UI(format=Format.json)
ui.reserve_stdout()
os.write(1, b"a library's greeting\\n")
ui.emit({"alone": True})
os.write(1, b"its good-bye\\n")
"""


def test_what_libraries_print_does_not_get_into_the_result() -> None:
    ran = subprocess.run([sys.executable, "-c", NOISY], capture_output=True, text=True, timeout=300)
    assert json.loads(ran.stdout) == {"alone": True}
    assert ran.stderr == "a library's greeting\nits good-bye\n"
