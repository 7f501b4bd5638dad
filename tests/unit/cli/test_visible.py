"""Texts of others, as they may be shown."""

import pytest

from epctx.text import visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a node\tand another\n", "a node\tand another\n"),
        ("größer", "größer"),
        ("\x1b[2J", "\\x1b[2J"),
        ("\u202eexe.txt", "\\u202eexe.txt"),
        ("\ud800", "\\ud800"),
        ("\x9b31m\x7f", "\\x9b31m\\x7f"),
    ],
)
def test_what_moves_a_cursor_or_turns_text_round_is_written_out(text: str, shown: str) -> None:
    assert visible(text) == shown
