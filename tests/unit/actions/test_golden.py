"""Golden files written by a worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.actions.action import StageStarted
from epctx.actions.golden import Golden
from tests.kit.controlled import Case
from tests.kit.inline import Inline


def test_they_are_announced_and_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case, heard = Case(tmp_path, monkeypatch), []
    golden = Golden(group=case.group(), built=case.folder, folder=tmp_path / "golden")

    def started(stage: StageStarted) -> None:
        assert not golden.folder.exists()
        heard.append(stage.stage)

    (result,) = Inline(tmp_path / "w", tmp_path / "log").run([golden], started=started)
    names = sorted(path.name for path in golden.folder.iterdir())
    assert (
        sorted(file.name for file in result.files)
        == names
        == ["SHA256SUMS", "golden.json", "m.npz"]
    )
    assert heard == ["golden"]
