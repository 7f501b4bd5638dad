"""`<stem>.ranges.json`: what is believed of it, what is kept, when it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from epctx.engine.ranges import Ranges, of
from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files.digest import of_bytes
from epctx.parsing import load
from epctx.quantization.ranges import text

ONE, TWO = of_bytes(b"one"), of_bytes(b"two")
KNOWN = text({"x": (-1.5, 2.0), "y": (0.0, 0.25)})


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with the ranges of two calibrations."""
    made = Ranges(tmp_path / "m.ranges.json")
    made.use(TWO, "b", text({"z": (0.0, 1.0)}))
    made.use(ONE, "a", KNOWN)
    made.write(whole=True)
    return tmp_path / "m.ranges.json"


def test_what_is_written_is_read(path: Path) -> None:
    found = Ranges(path)
    assert found.find(ONE) == KNOWN
    assert found.find(of_bytes(b"three")) is None
    assert [*json.loads(path.read_bytes())["calibrations"]] == sorted(map(str, (ONE, TWO)))


def test_a_whole_build_keeps_what_it_used_and_a_part_keeps_the_rest(path: Path) -> None:
    before = path.read_bytes()
    made = Ranges(path)
    made.use(ONE, "a", KNOWN)
    assert made.content(whole=False) == before
    assert made.locked(whole=False) == made.present
    made.write(whole=False)
    assert path.read_bytes() == before
    made.write(whole=True)
    assert [*json.loads(path.read_bytes())["calibrations"]] == [str(ONE)]
    assert Ranges(path).present == made.locked(whole=True) != made.present


def test_nothing_is_written_again_that_is_the_same(path: Path) -> None:
    before = path.stat()
    made = Ranges(path)
    for name, model in ((ONE, "a"), (TWO, "b")):
        known = made.find(name)
        assert known is not None
        made.use(name, model, known)
    made.write(whole=True)
    assert path.stat().st_ino == before.st_ino


def test_anew_believes_nothing(path: Path) -> None:
    made = Ranges(path, anew=True)
    assert made.find(ONE) is None
    made.use(ONE, "a", KNOWN)
    assert made.find(ONE) == KNOWN


def edited(**ranges: Any) -> bytes:
    known = {"model": "a", "ranges": ranges}
    return json.dumps({"schema_version": 1, "calibrations": {str(ONE): known}}).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "truncated"),
        (b"[]", "Expected `object`"),
        (b'{"schema_version": 2}', "schema_version 2, this epctx reads 1"),
        (edited(x=[1]), "Expected `array` of length 2"),
        (edited(x=[2, 1]), "[2.0, 1.0] of 'x' is not a float32 range"),
        (edited(x=[0, 1e39]), "[0.0, 1e+39] of 'x' is not a float32 range"),
        (edited(x=[0, float("nan")]), "malformed"),
    ],
)
def test_what_is_no_such_file_is_refused(content: bytes, why: str, path: Path) -> None:
    path.write_bytes(content)
    with pytest.raises(ManifestError, match="is not a file of calibrated ranges") as caught:
        Ranges(path)
    told = caught.value.failure
    assert told.why is not None and why in told.why
    assert (told.code, told.file) == (Code.CALIBRATION, str(path))


def test_a_file_without_end_is_not_read(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_LOCK_BYTES", "10")
    with pytest.raises(ManifestError, match="is not a file of calibrated ranges"):
        Ranges(path)


@pytest.mark.parametrize("quantize", [True, False])
def test_a_manifest_that_quantizes_nothing_has_none(quantize: bool, tmp_path: Path) -> None:
    section = "quantize: {calibration: {random: true}}" if quantize else "embed_mode: 0"
    (tmp_path / "m.yaml").write_text(
        "schema_version: 1\nname: m\nmodels: {a: {path: a.onnx}}\nmodel_groups:\n"
        f"  g: {{models: [a], execution_providers: [], {section}}}\n"
        "execution_providers: {}\n",
        encoding="utf-8",
    )
    (tmp_path / "m.ranges.json").write_bytes(b"something else")
    manifest = load.load(tmp_path / "m.yaml")
    if not quantize:
        assert of(manifest).path is None
        return
    with pytest.raises(ManifestError, match="is not a file of calibrated ranges"):
        of(manifest)
