"""Guards around every test."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_fixture_touches_the_users_cache(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[None]:
    """What fixtures of modules build comes before the guard of each test."""
    before = dict(os.environ)
    os.environ["EPCTX_CACHE_DIR"] = str(tmp_path_factory.getbasetemp() / "caches" / "of-fixtures")
    os.environ.pop("EPCTX_CACHE_READONLY", None)
    yield
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(autouse=True)
def _no_test_touches_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each test has a cache of its own, which is made when something is put into it."""
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    monkeypatch.delenv("EPCTX_CACHE_READONLY", raising=False)
