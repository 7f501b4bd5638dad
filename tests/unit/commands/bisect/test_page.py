"""What was found as files: all of it as JSON, and a page that shows it."""

from pathlib import Path

from epctx import codec
from epctx.commands.bisect import command
from epctx.commands.bisect.result import Bisection
from tests.kit.bisections import FOUND


def test_the_page_has_first_node_cause_repair_plot_and_table(tmp_path: Path) -> None:
    path = command.write_result(FOUND, tmp_path / "dist")
    text = path.read_text(encoding="utf-8")
    assert path.name == "m.g.a.bisect.html"
    for words in (
        "First wrong node",
        "&lt;n2&gt;",
        "fp16 overflow",
        "- n2",
        "2 tensors from -3.0 dB (v2) to 40.0 dB",
    ):
        assert words in text, words
    assert "<n2>" not in text, "names are escaped"
    assert text.count("<rect") == 2, "one without noise has no column"
    kept = path.with_suffix(".json").read_bytes()
    assert codec.decode(kept, Bisection) == FOUND


def test_of_nothing_wrong_the_page_says_so(tmp_path: Path) -> None:
    nothing = Bisection(name="m", target="default", group="g", model="a")
    text = command.write_result(nothing, tmp_path).read_text(encoding="utf-8")
    assert "nothing wrong" in text and "<rect" not in text and "<table" not in text
