"""Consoles: what texts of others cannot do there."""

import pytest
from rich.text import Text

from epctx.cli.console import console
from epctx.cli.render import UI, Color
from epctx.errors import ModelError


def test_no_control_character_of_a_message_reaches_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ui = UI(color=Color.always)
    error = ModelError(
        "node '\x1b]0;owned\x07\u202e' is broken", where="\x1b[2Ja.onnx", remedy="x\x9by"
    )
    ui.error(error)
    ui.print("\x1b[31mred", Text("a\x1bb"))
    said = "".join(capsys.readouterr())
    assert "\\x1b]0;owned\\x07\\u202e" in said and "\\x1b[2Ja.onnx" in said
    assert "x\\x9by" in said and "\\x1b[31mred" in said and "a\\x1bb" in said
    for sequence in ("\x1b]", "\x1b[2J", "\x07", "\u202e", "\x9b", "\x1b[31mred", "\r", "\x08"):
        assert sequence not in said
    assert "\x1b[" in said  # colours of our own


@pytest.mark.parametrize(("color", "system"), [("always", "standard"), ("never", None)])
def test_a_log_has_the_colours_that_were_asked_for_and_no_cursor(
    color: str, system: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    made = console(stderr=True, color=color)
    assert made.color_system == system and not made.is_terminal
