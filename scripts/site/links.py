"""What the pages of a built site link to and load: links lead somewhere, nothing is fetched."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADS: Final = re.compile(r"url\(\s*['\"]?(https?:)?//|@import\s+['\"](https?:)?//")
"""In a style sheet, something from elsewhere."""
_FAR: Final = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
"""Begins a link to another site."""


class _Page(HTMLParser):
    """The ids of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        said = {name: value or "" for name, value in attrs}
        self.ids |= {said[name] for name in ("id", "name") if name in said}
        self.links += [said["href"]] if tag == "a" and "href" in said else []
        self.loaded += [said["src"]] if "src" in said else []
        self.loaded += [said["href"]] if tag == "link" and "href" in said else []


def check(folder: Path) -> list[str]:
    """What is wrong: a page, and a link of it that leads nowhere or loads from elsewhere.

    Links to other sites are not followed: the check needs no network.
    """
    pages = {path.resolve(): _Page(path) for path in folder.rglob("*.html")}
    styles = (path for path in folder.rglob("*.css") if _LOADS.search(path.read_text("utf-8")))
    wrong = [f"{path.relative_to(folder)}: loads from elsewhere" for path in styles]
    for path, page in pages.items():
        name = path.relative_to(folder.resolve())
        wrong += [f"{name}: loads {each}" for each in page.loaded if urlsplit(each).netloc]
        inside = (each for each in [*page.links, *page.loaded] if not _FAR.match(each))
        wrong += [
            f"{name}: {each}: leads nowhere" for each in inside if not _leads(each, path, pages)
        ]
    return sorted(set(wrong))


def _leads(link: str, page: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
    if target not in pages:
        return target.is_file()
    return not parts.fragment or unquote(parts.fragment) in pages[target].ids
