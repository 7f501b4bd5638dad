"""Where a command finds the manifest that nobody named."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.commands.options import located
from epctx.errors import UsageError
from tests.unit.cli.conftest import GOOD


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def put(*names: str, text: str = GOOD) -> None:
    for name in names:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")


def test_the_usual_one_comes_first() -> None:
    put("epctx.yaml", "manifests/a.yaml")
    assert located(None) == Path("epctx.yaml")


def test_the_only_one_of_its_folder_is_taken_locks_and_other_files_apart() -> None:
    put("manifests/a.yml")
    put("manifests/a.lock.yaml", text="lock_version: 1\nexecution_providers: {}\n")
    put("manifests/values.yaml", text="replicas: 2\n")
    assert located(None) == Path("manifests/a.yml")


def test_several_are_named_and_none_says_how_to_get_one() -> None:
    with pytest.raises(UsageError, match="no manifest was named") as caught:
        located(None)
    assert "epctx init" in caught.value.remedy
    put("manifests/a.yaml", "manifests/b.yaml")
    with pytest.raises(UsageError, match=r"manifests/a.yaml, manifests/b.yaml"):
        located(None)
