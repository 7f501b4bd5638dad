"""Results of a device are read with their bounds, whatever is in them."""

import json
from pathlib import Path
from typing import Any

import pytest

from epctx.errors import UsageError
from epctx.verification.device_results import read

GOOD: dict[str, Any] = {
    "version": 1,
    "made": "2026-01-01T00:00:00Z",
    "host": {"name": "d"},
    "packages": {"onnxruntime": "1"},
    "built_with": {"onnxruntime": "1"},
    "expect_driver": None,
    "devices": [],
    "models": [{"model": "t/g/a", "load": 0.5, "done": True, "numbers": [{"set": "x"}]}],
}


def write(folder: Path, content: object) -> Path:
    path = folder / "device.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_what_the_script_writes_is_read_and_what_only_people_read_is_not(tmp_path: Path) -> None:
    found = read(write(tmp_path, GOOD))
    assert found.models[0].load == 0.5 and found.models[0].outputs is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        "{",
        "[" * 100_000,
        json.dumps(GOOD)[:-20],
        {**GOOD, "version": 2},
        {**GOOD, "models": [{"model": 1}]},
        {**GOOD, "models": [{"model": "a", "load": -1.0}]},
        {**GOOD, "models": [{"model": "a", "median": "1"}]},
        {**GOOD, "models": [{"model": "a", "runs": -1}]},
        {**GOOD, "models": [{"model": "a", "p99": float("nan")}]},
        {**GOOD, "models": [{"model": "a", "files": ["x"]}]},
        {**GOOD, "devices": [{"ep": "x", "kind": "CPU", "drivers": {"driver": 1}}]},
        {k: v for k, v in GOOD.items() if k != "packages"},
        {**GOOD, "models": [{"model": "a"}, {"model": "a"}]},
    ],
)
def test_what_is_none_is_refused(tmp_path: Path, content: object) -> None:
    with pytest.raises(UsageError, match=r"check_device\.py wrote"):
        read(write(tmp_path, content))


def test_more_bytes_than_a_record_may_have_are_not_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_RECORD_BYTES", "20")
    with pytest.raises(UsageError, match="larger than"):
        read(write(tmp_path, GOOD))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read(tmp_path / "none.json")
