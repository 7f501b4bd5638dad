from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit import projects
from tests.kit.inline import Inline
from tests.kit.projects import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Models `a` and `b` of group `g`, each by itself; built without worker processes."""
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    projects.steady(monkeypatch)
    made = projects.make(tmp_path / "p", {"g": ["a", "b"]}, verify={"inputs": {"count": 1}})
    del made.section("model_groups", "g")["sharing_groups"]
    made.write()
    return made
