"""What fuzzing found stays found; `make soak` looks for more (EPCTX_FUZZ_SECONDS a target: half an
hour in all, unless it says otherwise)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx.providers.onnxruntime.qnn.provider import QNNExecutionProvider
from tests.fuzz import campaign
from tests.fuzz.targets import TARGETS, recognize_none

SEEDS = sorted(path for path in campaign.SEEDS.rglob("*") if path.is_file())


@pytest.fixture(autouse=True)
def _without_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `python -m tests.fuzz` does."""
    monkeypatch.setattr(QNNExecutionProvider, "recognizes", recognize_none)


def test_every_target_has_seeds_and_every_seed_a_target() -> None:
    assert {path.parent.name for path in SEEDS} == TARGETS.keys()


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_and_what_once_was_found(target: str) -> None:
    for path in SEEDS:
        if path.parent.name == target:
            TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_seeds_cut_short(target: str) -> None:
    for path in SEEDS:
        if path.parent.name == target:
            data = path.read_bytes()
            for part in range(8):
                TARGETS[target](data[: len(data) * part // 8])


@pytest.mark.soak
@pytest.mark.needs("module atheris", "it has wheels for Linux only")
@pytest.mark.parametrize("target", TARGETS)
def test_fuzzing_finds_nothing(target: str, tmp_path: Path) -> None:
    seconds = int(os.environ.get("EPCTX_FUZZ_SECONDS", "75"))
    outcome = campaign.fuzz(target, seconds, tmp_path)
    print(f"\n{outcome}")
    assert outcome.executions > 0 and not outcome.said
    assert not outcome.found


@pytest.mark.soak
@pytest.mark.needs("module atheris", "it has wheels for Linux only")
def test_a_fault_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # As if the decoder let through what msgspec lets through, which fuzzing found in seconds.
    (tmp_path / "sitecustomize.py").write_text(
        "import msgspec, epctx.codec\n"
        "epctx.codec.decode = lambda data, kind: msgspec.json.decode(data, type=kind)\n",
        encoding="utf-8",
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    outcome = campaign.fuzz("cache_record", 30, tmp_path)
    assert outcome.found and "UnicodeDecodeError" in outcome.said
