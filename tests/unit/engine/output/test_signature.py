"""A signature goes when what it is of goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from epctx.engine.output import record
from epctx.engine.output.place import OutputPaths
from epctx.files import outputs
from epctx.signing import oms
from epctx.signing.keys import Signer
from tests.kit import signing


@pytest.fixture
def place(tmp_path: Path) -> OutputPaths:
    """With one group, `t/g`, and another one that was signed with it."""
    (tmp_path / "m" / "t" / "g").mkdir(parents=True)
    return OutputPaths(out=tmp_path, name="m")


def output(place: OutputPaths, content: bytes) -> outputs.OutputFile:
    path = place.group("t", "g") / "a.bin"
    path.unlink(missing_ok=True)
    return outputs.write(path, [content])


def sign(place: OutputPaths, *folders: str) -> None:
    sha256 = output(place, b"a").sha256.hex
    signer = Signer.load(signing.write_key(place.out, "k")[0])
    place.signature.write_bytes(oms.sign(signer, "m", {f"{f}/a.bin": sha256 for f in folders}))


def test_it_stays_while_it_is_of_what_is_published(place: OutputPaths) -> None:
    sign(place, "t/g", "t/h")
    same = {"t/g": [output(place, b"a")]}
    assert not record.withdraw_signature(place, same, whole=False)
    assert place.signature.exists()
    assert record.withdraw_signature(place, same, whole=True), "there will be no t/h"
    assert not place.signature.exists()
    assert not record.withdraw_signature(place, same, whole=True), "there is none"


def test_it_goes_when_a_file_becomes_another(place: OutputPaths) -> None:
    sign(place, "t/g")
    assert record.withdraw_signature(place, {"t/g": [output(place, b"b")]}, whole=True)


def test_it_goes_when_a_file_goes(place: OutputPaths) -> None:
    sign(place, "t/g", "t/h")
    sha256 = output(place, b"a").sha256.hex
    signer = Signer.load(signing.write_key(place.out, "k2")[0])
    files = {"t/g/a.bin": sha256, "t/g/gone.onnx": sha256, "t/g/SHA256SUMS": sha256}
    same = {"t/g": [output(place, b"a")]}
    place.signature.write_bytes(oms.sign(signer, "m", files))
    assert record.withdraw_signature(place, same, whole=False), "gone.onnx is signed"
    del files["t/g/gone.onnx"]
    place.signature.write_bytes(oms.sign(signer, "m", files))
    assert not record.withdraw_signature(place, same, whole=True)


def test_it_goes_when_it_is_none(place: OutputPaths) -> None:
    place.signature.write_bytes(b"x")
    assert record.withdraw_signature(place, {"t/g": [output(place, b"a")]}, whole=True)
    place.signature.mkdir()
    assert record.withdraw_signature(place, {"t/g": [output(place, b"a")]}, whole=True)
