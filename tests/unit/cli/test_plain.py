import io
import subprocess
import sys
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console, RenderableType
from rich.panel import Panel

from epctx.cli import render
from epctx.cli.plain import HasLines, Text, Tree

CELLS = st.text(st.characters(exclude_categories=["C", "Z", "M"]) | st.just(" "), max_size=12)
Nested = Sequence["str | Nested"]
ROWS = st.integers(1, 4).flatmap(
    lambda n: st.lists(st.lists(CELLS, min_size=n, max_size=n), min_size=1, max_size=4)
)


def grown(nested: Nested) -> Tree:
    tree = Tree(Text(f"of {len(nested)}"))
    for each in nested:
        if isinstance(each, str):
            tree.add(Text(each))
        else:
            tree.children.append(grown(each))
    return tree


def as_rich_prints(renderable: RenderableType) -> list[str]:
    console = Console(
        file=io.StringIO(), width=10_000, highlight=False, markup=False, emoji=False, soft_wrap=True
    )
    with console.capture() as captured:
        console.print(renderable)
    return [line.rstrip() for line in captured.get().removesuffix("\n").split("\n")]


@given(ROWS, st.booleans())
def test_a_table_is_as_rich_prints_it(rows: Sequence[Sequence[str]], right: bool) -> None:
    headings = [f"h{number}" for number in range(len(rows[0]))]
    table = render.table(*headings, right=headings if right else ())
    for row in rows:
        table.add_row(*map(Text, row))
    lines = table.lines()
    assert lines is not None
    assert [line.rstrip() for line in lines] == as_rich_prints(table)


@given(st.recursive(CELLS.map(lambda text: [text]), lambda trees: st.lists(trees, min_size=1)))
def test_a_tree_is_as_rich_prints_it(nested: Nested) -> None:
    tree = grown(nested)
    lines = tree.lines()
    assert lines is not None
    assert [line.rstrip() for line in lines] == as_rich_prints(tree)


@given(st.lists(CELLS, min_size=1))
def test_a_text_is_as_rich_prints_it(lines: Sequence[str]) -> None:
    text = Text("\n".join(lines), style="bold")
    found = text.lines()
    assert found is not None
    assert [line.rstrip() for line in found] == as_rich_prints(text)


@pytest.mark.parametrize("cell", ["two\nlines", "a\ttab", "\x1b[31mred"])
def test_what_is_no_plain_line_is_left_to_rich(cell: str) -> None:
    table = render.table("h")
    table.add_row(Text(cell))
    assert table.lines() is None


def test_so_is_whatever_is_something_else() -> None:
    assert not isinstance(Panel("t"), HasLines)
    assert grown([["two\nlines"]]).lines() is None
    assert Text("a\ttab").lines() is None
    assert render.table().lines() is None


def test_a_text_of_others_keeps_their_styles() -> None:
    inner = Text("b", style="bold").append("c", "red")
    whole = Text("a", style="dim").append(inner).append("d")
    assert (str(whole), bool(whole), bool(Text())) == ("abcd", True, False)
    spans = [(span.start, span.end, span.style) for span in whole.__rich__().spans if span.style]
    assert (whole.__rich__().style, spans) == ("dim", [(1, 2, "bold"), (2, 3, "bold red")])
    assert Text(", ").join([Text("a"), inner, Text("d")]).plain == "a, bc, d"
    assert Text.assemble("a", ("b", "bold")).__rich__().spans[-1].style == "bold"


def test_a_log_is_written_without_rich() -> None:
    """Of which the import takes a tenth of a short command."""
    code = """
import sys
from epctx.cli import render, summary
from epctx.cli.plain import Text
ui = render.UI()
table = render.table("a", "b", right=["b"])
table.add_row("x", Text("1", style="green"))
ui.print(table, Text("said", style="bold"))
ui.note(render.warning("what", "remedy"))
print("rich" in sys.modules)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert ran.stdout.decode().splitlines() == ["a  b", "\u2500" * 4, "x  1", "said", "False"]
    assert ran.stderr.decode().splitlines() == ["warning: what", "  -> remedy"]
