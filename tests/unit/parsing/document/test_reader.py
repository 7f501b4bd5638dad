"""Reading a manifest's file."""

from pathlib import Path

import pytest

from epctx import limits
from epctx.errors import InvalidManifest, ManifestError
from epctx.parsing import document


def test_a_document_knows_its_file_as_named_and_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.yaml").write_text("a: 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    read = document.read(Path("m.yaml"))
    assert (read.file, read.path) == ("m.yaml", tmp_path / "m.yaml")
    assert read.root.plain() == {"a": 1}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    root = document.read(path).root
    assert root.plain() == {"a": 1, "b": 2}
    assert root.keys["a"].column == 1


@pytest.mark.parametrize(("name", "told"), [(".", "is a folder"), ("a\x00b", "cannot be read")])
def test_what_is_no_file_is_a_manifest_error(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ManifestError, match=told):
        document.read(tmp_path / name)


def test_a_binary_file_is_no_text_whatever_its_first_odd_byte_is(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"EPCT\0\xff")
    with pytest.raises(InvalidManifest, match="is no text"):
        document.read(tmp_path / "m.bin")


def test_a_model_in_place_of_a_manifest_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\xff")
    with pytest.raises(ManifestError, match="is a model, not a manifest") as caught:
        document.read(tmp_path / "m.onnx")
    assert f"epctx init {(tmp_path / 'm.onnx').as_posix()}" in caught.value.remedy


def test_text_that_is_not_utf8_is_told_where(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest) as caught:
        document.parse(b"a: 1\nb: caf\xe9\n", file="m.yaml", path=tmp_path)
    (violation,) = caught.value.violations
    assert (violation.line, violation.column, violation.what) == (2, 7, "is not UTF-8")


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b" " * (limits.MANIFEST_BYTES.value + 1))
    with pytest.raises(InvalidManifest, match="larger than 4 MiB"):
        document.read(path)
