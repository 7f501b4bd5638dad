"""Guards around every test."""

from __future__ import annotations

import uuid

import pytest


@pytest.fixture(autouse=True)
def _no_test_touches_the_users_cache(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Each test has a cache of its own, which is made when something is put into it."""
    folder = tmp_path_factory.getbasetemp() / "caches" / uuid.uuid4().hex
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(folder))
    monkeypatch.delenv("EPCTX_CACHE_READONLY", raising=False)
