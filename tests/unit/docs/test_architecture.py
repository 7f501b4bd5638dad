"""docs/architecture.md names what is there: each module, class and function that it speaks of."""

import importlib
import re
from pathlib import Path

import pytest

import epctx

ROOT = Path(__file__).parents[3]
PACKAGE = Path(epctx.__file__).parent
TEXT = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
ROOMS = {p.stem for p in PACKAGE.iterdir() if p.name != "__pycache__"}
NAMES = sorted(
    {name for name in re.findall(r"`([a-z_]+(?:\.\w+)*)`", TEXT) if name.split(".")[0] in ROOMS}
)


def resolve(name: str) -> object:
    """What a dotted name below `epctx` is: as much of it as is a module, then attributes."""
    found: object = epctx
    path = "epctx"
    for part in name.split("."):
        path = f"{path}.{part}"
        try:
            found = importlib.import_module(path)
        except ModuleNotFoundError:
            found = getattr(found, part)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_the_page_names_is_there(name: str) -> None:
    assert resolve(name) is not None


def test_the_page_names_every_room() -> None:
    rooms = {p.name for p in PACKAGE.iterdir() if p.is_dir() and p.name[0] != "_"}
    assert {room for room in rooms if not re.search(rf"\b{room}\b", TEXT)} == set()


def test_a_name_that_is_gone_is_found() -> None:
    with pytest.raises(AttributeError):
        resolve("engine.executor.Gone")
