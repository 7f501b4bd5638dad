import io
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.text import Text
from rich.tree import Tree

from epctx.cli import plain, render

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
    lines = plain.lines(table)
    assert lines is not None
    assert [line.rstrip() for line in lines] == as_rich_prints(table)


@given(st.recursive(CELLS.map(lambda text: [text]), lambda trees: st.lists(trees, min_size=1)))
def test_a_tree_is_as_rich_prints_it(nested: Nested) -> None:
    tree = grown(nested)
    lines = plain.lines(tree)
    assert lines is not None
    assert [line.rstrip() for line in lines] == as_rich_prints(tree)


@given(st.lists(CELLS, min_size=1))
def test_a_text_is_as_rich_prints_it(lines: Sequence[str]) -> None:
    text = Text("\n".join(lines), style="bold")
    found = plain.lines(text)
    assert found is not None
    assert [line.rstrip() for line in found] == as_rich_prints(text)


@pytest.mark.parametrize("cell", ["two\nlines", "a\ttab", "\x1b[31mred"])
def test_what_is_no_plain_line_is_left_to_rich(cell: str) -> None:
    table = render.table("h")
    table.add_row(Text(cell))
    assert plain.lines(table) is None


def test_so_is_whatever_is_something_else() -> None:
    assert plain.lines(Panel("t")) is None
    assert plain.lines(grown([["two\nlines"]])) is None
    assert plain.lines(Text("a\ttab")) is None
    assert plain.lines(render.table()) is None
