"""Small models of which the reference EP damages one weight; builds without processes."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from epctx.worker import pool
from tests.kit import command_line, wrong
from tests.kit.inline import Inline


@pytest.fixture
def damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The manifest of a model of 31 nodes, of which `product6` is compiled wrongly."""
    monkeypatch.syspath_prepend(command_line.FAULTY)
    monkeypatch.setattr(pool, "Worker", Inline)
    command_line.forget_eps()
    faulty = importlib.import_module("epctx_faulty").FaultyExecutionProvider
    monkeypatch.setattr(faulty, "isolated", False)
    options = {"fault": "weight", "weight": "w6"}
    yield wrong.write(
        tmp_path, wrong.nothing, provider="FaultyExecutionProvider", options=options, layers=10
    )
    command_line.forget_eps()
