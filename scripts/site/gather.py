"""Puts the sources of the site into one folder: docs/, the reference, and what they link to."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from os.path import relpath
from pathlib import Path, PurePosixPath
from typing import Final

from scripts.site import commands, schemas
from scripts.site.markdown import contents

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = PurePosixPath("docs")
_LINK: Final = re.compile(r"(\]\()([^()\s#][^()\s#]*)((?:#[^()\s]*)?\))")
_FILE: Final = re.compile(r"^<!-- file: (\S+) -->\n+```(\w+)\n", re.MULTILINE)
_BELOW: Final = re.compile(r"^<!-- pages below: (.+) -->$", re.MULTILINE)
"""In a page, the pages that the sidebar has below it."""
_RUN: Final = re.compile(r"^<!-- not run: .*? -->\n", re.MULTILINE)
_GLOB: Final = re.compile(r"[\w/]+[*]$")
_URL: Final = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def gather(folder: Path, root: Path = ROOT) -> None:
    """Write the sources of all pages.

    Pages of docs/ are at the top of the site. What they link to of the rest of the checkout comes
    along, below its own path, and so on from there.
    """
    known: set[PurePosixPath] = set()
    todo = [PurePosixPath(p.relative_to(root).as_posix()) for p in (root / "docs").rglob("*.md")]
    while todo:
        path = todo.pop()
        if path not in known:
            known.add(path)
            todo += _bring(path, root, folder)
    for name, text in generated().items():
        _write(folder / name, text)
    _drop_empty(folder / "index.md")


def _drop_empty(page: Path) -> None:
    """Of a page's lists of pages, leave out the patterns that no page has: Sphinx warns of them."""
    lines = page.read_text(encoding="utf-8").splitlines()
    kept = (line for line in lines if not _GLOB.match(line) or [*page.parent.glob(f"{line}.md")])
    _write(page, "\n".join(kept) + "\n")


def generated() -> Mapping[str, str]:
    """The pages that are made of schemas and of the program, by their paths."""
    pages: dict[str, Callable[[], str]] = {
        "errors/index.md": commands.index_of_errors,
        "reference/environment.md": commands.variables,
        "reference/exit-codes.md": commands.exit_codes,
        "reference/manifest.md": schemas.manifest,
        "reference/options/index.md": schemas.index_of_options,
    }
    made = {path: make() for path, make in pages.items()}
    for name in commands.names():
        made[f"reference/commands/{name}.md"] = commands.command(name)
    for name in schemas.providers():
        made[f"reference/options/{name}.md"] = schemas.options(name)
    for name in ("lock", "report", "events"):
        made[f"reference/{name}.md"] = schemas.form(name)
    return made


def _bring(path: PurePosixPath, root: Path, folder: Path) -> list[PurePosixPath]:
    """Copy a file; of a page, what it links to outside of docs/ is to come along."""
    target = folder / at(path)
    if path.suffix != ".md":
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(root / path, target)
        return []
    text = _text(root / path)
    linked = dict(_links(text, path, root))
    _write(target, page(text, path, linked))
    return list(linked.values())


def _text(path: Path) -> str:
    """A page; of a folder that has none, the list of its files."""
    if path.exists():
        return path.read_text(encoding="utf-8")
    files = sorted(each.name for each in path.parent.glob("[!.]*") if each.is_file())
    listed = "\n".join(f"- [{name}]({name})" for name in files)
    return f"# {path.parent.name}\n\n{listed}\n"


def page(text: str, path: PurePosixPath, linked: Mapping[str, PurePosixPath]) -> str:
    """A page's text as the site has it: its links, its files named, in no list if not of docs/."""

    def moved(match: re.Match[str]) -> str:
        before, target, after = match.groups()
        if target not in linked:
            return match[0]
        return f"{before}{relpath(at(linked[target]), at(path).parent)}{after}"

    text = _LINK.sub(moved, _RUN.sub("", text))
    text = _FILE.sub(r"```{code-block} \2\n:caption: \1\n\n", text)
    text = _BELOW.sub(lambda match: contents(match[1].split()), text)
    return text if path.is_relative_to(DOCS) else f"---\norphan: true\n---\n{text}"


def at(path: PurePosixPath) -> PurePosixPath:
    """Where the site has a file of the checkout."""
    return path.relative_to(DOCS) if path.is_relative_to(DOCS) else path


def _links(text: str, path: PurePosixPath, root: Path) -> Iterator[tuple[str, PurePosixPath]]:
    """What a page links to, of what is in the checkout: as it is written, and the file."""
    for _, target, _ in _LINK.findall(text):
        found = root / path.parent / target
        if _URL.match(target) or not found.exists():
            continue
        found = found / "README.md" if found.is_dir() else found
        yield target, PurePosixPath(found.resolve().relative_to(root.resolve()).as_posix())


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8", newline="\n")
