from __future__ import annotations

from pathlib import Path

import pytest

from epctx.cache.location import Location
from epctx.cache.store import Cache


@pytest.fixture
def notices() -> list[str]:
    """What the cache told of corrupt files."""
    return []


@pytest.fixture
def location(tmp_path: Path) -> Location:
    return Location(folder=tmp_path / "cache")


@pytest.fixture
def cache(location: Location, notices: list[str]) -> Cache:
    return Cache(location, notices.append)
