"""What is printed is no command to who reads it; what cannot be printed is told."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
import typer
from rich.text import Text
from typer.testing import CliRunner

from epctx.cli import app as command_line
from epctx.cli import render, streams
from epctx.cli.render import UI
from epctx.cli.streams import Stream
from epctx.errors import ModelError
from tests.kit.command_line import PROGRAM

BREAKS = ("\n", "\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029")
"""All that ends a line for some reader of a log."""
HOSTILE = "".join(f"a{each}::error::owned{each}  ::stop-commands::x" for each in BREAKS)
HOSTILE += "##[error]owned ##vso[task.complete]owned ##teamcity[buildStop] section_start:1:a"
HOSTILE += "\n--- owned\n+++ owned\n~~~\towned\n^^^ +++\n"


def is_inert(text: str) -> bool:
    """Tell whether no CI system obeys a text, by the parsers that `streams.COMMAND` names."""
    anywhere = ("##[", "##vso[", "##teamcity[", "section_start:", "section_end:")
    first = ("--- ", "+++ ", "~~~\t", "^^^ ")
    lines = [re.sub(r"\x1b\[[;\d]*m", "", line) for line in text.splitlines()]
    return not any(
        line.strip().startswith("::") or line.startswith(first) or any(c in line for c in anywhere)
        for line in lines
    )


@pytest.fixture
def stream() -> Stream:
    return Stream(io.StringIO())


def written(stream: Stream) -> str:
    return cast(io.StringIO, stream.inner).getvalue()


def test_no_text_is_a_command(stream: Stream) -> None:
    stream.write(HOSTILE)
    assert is_inert(written(stream)) and "owned" in written(stream)


@pytest.mark.parametrize(
    "text",
    [
        *("a\n  ::error::owned", "::error::x", "a ##[error]x ::a", f"{' ' * 99}::error::x"),
        *(f"{'a' * 99}##vso[task.complete]x", "a ##teamcity[x 'y']", "a section_end:1:b"),
        *("a\n--- x", "\x1b[31m+++\x1b[0m x", "^^^ +++"),
    ],
)
def test_nor_is_one_that_comes_in_pieces(text: str) -> None:
    for first in range(len(text)):
        for second in range(first, len(text)):
            stream = Stream(io.StringIO())
            for piece in (text[:first], text[first:second], text[second:]):
                stream.write(piece)
            assert is_inert(written(stream)), (first, second)


def test_what_is_none_is_as_it_was(stream: Stream) -> None:
    text = "a::b C::d # ## [x] ##vs[\n: :\n\x1b[31mred\x1b[0m \u00e9\t\u4e2d\n"
    text += "-----BEGIN\n---\n a --- b\n"
    stream.write(text)
    assert written(stream) == text


def test_json_says_the_same(stream: Stream) -> None:
    stream.write(render.document({"name": HOSTILE}))
    assert json.loads(written(stream)) == {"name": HOSTILE}


def test_no_way_of_printing_makes_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results, notes, errors, help, wrong arguments: whatever goes to stdout and stderr."""
    hostile = "::error::owned"

    def doctor(ui: UI, what: str = typer.Argument(default="")) -> None:
        print(hostile)
        typer.echo(hostile)
        ui.print(Text(HOSTILE))
        ui.note(Text(HOSTILE))
        raise ModelError("is broken", where=HOSTILE, remedy=f"rename\n{HOSTILE}")

    doctor.__doc__ = f"{HOSTILE}\n\n{hostile}"
    monkeypatch.setattr("epctx.cli.doctor.doctor", doctor)
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    for arguments in (
        ["doctor"],
        ["doctor", "--help"],
        ["doctor", "--no", HOSTILE],
        ["doctor", HOSTILE, HOSTILE],
        ["doctor", HOSTILE, "--format", "json"],
        [HOSTILE],
    ):
        ended = CliRunner().invoke(command_line.app, arguments)
        assert is_inert(ended.stdout) and is_inert(ended.stderr), arguments
        assert "stop-commands" in ended.output or "error[E0201]" in ended.output


def test_a_command_that_is_meant_is_one(stream: Stream) -> None:
    stream.write_raw("::error title=epctx::is broken\n")
    assert written(stream) == "::error title=epctx::is broken\n"


class Full(io.StringIO):
    """A file on a disk that is full."""

    def write(self, text: str) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize(
    ("code", "ends"), [(0, 9), (7, 7)], ids=["that did well", "that failed itself"]
)
def test_what_stdout_did_not_take_is_an_error_of_a_command(
    code: int, ends: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = io.StringIO()
    monkeypatch.setattr(sys, "stdout", Full())
    monkeypatch.setattr(sys, "stderr", err)
    with pytest.raises(SystemExit) as raised, streams.guarded():
        print("result")
        raise SystemExit(code)
    assert raised.value.code == ends
    assert (
        "error[E0900]: stdout: cannot be written: No space left on device\n  -> " in err.getvalue()
    )
    assert isinstance(sys.stdout, Full)


def test_what_stderr_did_not_take_is_said_on_stdout(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", Full())
    with streams.guarded():
        print("a note", file=sys.stderr)
    assert out.getvalue() == ""  # nothing failed
    with pytest.raises(SystemExit), streams.guarded():
        print("error: is broken", file=sys.stderr)
        raise SystemExit(4)
    assert out.getvalue() == "error: is broken\n"
    with pytest.raises(SystemExit), streams.guarded():
        print('{"error": 1}')
        print("error: is broken", file=sys.stderr)
        raise SystemExit(4)
    assert out.getvalue().endswith('{"error": 1}\n')  # a result stays alone


needs_dev_full = pytest.mark.needs("/dev/full", "a device that is full is Linux's")


@pytest.mark.needs("POSIX", "the shell is POSIX's")
@pytest.mark.parametrize(
    ("arguments", "streams", "code", "says"),
    [
        ("--version", ">&-", 9, "error[E0900]: stdout: cannot be written: "),
        ("--help", ">&-", 9, "error[E0900]: stdout: cannot be written: "),
        ("schema manifest", ">&-", 9, "error[E0900]: stdout: cannot be written: "),
        ("schema --format json", ">&-", 9, "error[E0900]: stdout: cannot be written: "),
        pytest.param(
            *("schema", ">/dev/full", 9, "error[E0900]: stdout: cannot be written: No space"),
            marks=needs_dev_full,
        ),
        pytest.param("schema", "2>/dev/full", 0, "manifest", marks=needs_dev_full),
        ("schema", "2>&-", 0, "manifest"),
        ("schema", "<&-", 0, "manifest"),
        ("schema", ">&- 2>&-", 9, ""),
        ("schema nothing", "2>&-", 2, "error[E0203]: "),
        ("schema nothing", ">&-", 2, "error[E0203]: "),
        ("nothing", "2>&-", 2, "no command"),
        ("schema manifest", "| true", 0, ""),
        ("validate nothing.yaml", "2>&1 | true", 2, ""),
    ],
)
def test_closed_and_full_streams_end_as_said(
    arguments: str, streams: str, code: int, says: str, tmp_path: Path
) -> None:
    """Never a traceback, never in silence where anything can still be said."""
    program = " ".join(map(repr, PROGRAM))
    command = f"{{ {program} {arguments}; echo $? >code; }} {streams}"
    ran = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = ran.stdout + ran.stderr
    assert int((tmp_path / "code").read_text()) == code, said
    assert says in said
    assert "Traceback" not in said and "a bug in epctx" not in said


def test_what_an_encoding_does_not_have_is_escaped_as_in_json(tmp_path: Path) -> None:
    text = "é😀\U0010ffff"
    with (tmp_path / "out").open("w", encoding="ascii") as inner:
        Stream(inner).write(json.dumps(text, ensure_ascii=False))
    written = (tmp_path / "out").read_text(encoding="ascii")
    assert written == r'"\u00e9\ud83d\ude00\udbff\udfff"'
    assert json.loads(written) == text
