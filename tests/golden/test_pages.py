"""Visible text of the pages of builds and of their differences, held by text files.

With EPCTX_UPDATE_GOLDEN=1 they are written anew: read the diff.
"""

import os
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from epctx import api, codec
from epctx.commands.report import page
from epctx.engine.report import BuildReport
from tests.kit.reports import failing, report

PAGES = Path(__file__).parent / "pages"
LINES = re.compile(r"(h\d|p|li|tr|dt|dd|summary|caption|figcaption|pre|section|text|title)$")
HIDDEN = ("script", "style")


class Text(HTMLParser):
    """Visible text and links of a page: a line for each row, paragraph and heading."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.lines: list[list[str]] = [[]]
        self._hidden = False
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._hidden = tag in HIDDEN
        if LINES.match(tag):
            self.lines.append([])
        href = dict(attrs).get("href")
        if href is not None:
            self.lines[-1].append(f"[{href}]")

    def handle_endtag(self, tag: str) -> None:
        self._hidden = False

    def handle_data(self, data: str) -> None:
        if not self._hidden and data.strip():
            self.lines[-1].append(" ".join(data.split()))

    def __str__(self) -> str:
        return "".join(" | ".join(line) + "\n" for line in self.lines if line)


def build(made: BuildReport, folder: Path) -> str:
    """Return the page of a build of which one file and one log are still there."""
    for path in ("made/edge/eye/chain_ctx.onnx", "made.logs/nose.log"):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).touch()
    return page.render(made, folder, folder / "pages")


def two_builds(folder: Path) -> str:
    """Return the page of what differs between a build and one that failed."""
    paths = folder / "old.build.json", folder / "new.build.json"
    for path, made in zip(paths, (report(), failing()), strict=True):
        path.write_bytes(codec.encode(made))
    api.diff(*paths, html=folder / "page.html")
    return (folder / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "render"),
    [
        ("build", lambda folder: build(report(), folder)),
        ("failing", lambda folder: build(failing(), folder)),
        ("compared", two_builds),
    ],
)
def test_a_page_says_what_it_did(name: str, render: Callable[[Path], str], tmp_path: Path) -> None:
    html = render(tmp_path)
    assert str(tmp_path) not in html, "a path of the builder"
    golden = PAGES / f"{name}.txt"
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        golden.write_text(str(Text(html)), encoding="utf-8", newline="\n")
    assert str(Text(html)) == golden.read_text(encoding="utf-8")
