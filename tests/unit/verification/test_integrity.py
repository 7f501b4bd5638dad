from __future__ import annotations

import os
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.files.digest import Digest, of_file
from epctx.files.outputs import OutputFile
from epctx.verification.request import ExpectedFile
from tests.kit import folders
from tests.kit.folders import found, outcomes


def test_every_file_is_checked_against_the_sums(tmp_path: Path) -> None:
    findings = found(folders.write(tmp_path), "sums")
    assert [(f.subject, f.outcome) for f in findings] == [
        ("m_ctx.onnx", "pass"),
        ("m_reference.bin", "pass"),
    ]
    assert findings[0].message == "its SHA-256 is that of SHA256SUMS"


def test_a_flipped_byte_names_the_file(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    data = bytearray((folder / "m_reference.bin").read_bytes())
    data[300] ^= 1
    (folder / "m_reference.bin").write_bytes(data)
    (failed,) = found(folder, "sums", "fail")
    assert failed.subject == "m_reference.bin"
    assert failed.message.startswith("was changed: its SHA-256 is ")
    assert "build again" in failed.remedy


def written(folder: Path) -> tuple[OutputFile, ...]:
    """What a build knows of the files that it has just written."""
    return tuple(
        OutputFile(
            name=path.name,
            size=path.stat().st_size,
            sha256=of_file(path, "sha256"),
            blake3=of_file(path),
        )
        for path in sorted(folder.iterdir())
        if path.name != "SHA256SUMS"
    )


def test_what_was_just_written_is_read_anew_for_its_blake3(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    known = written(folder)
    assert {f.message for f in found(folder, "sums", written=known)} == {
        "its BLAKE3 is that of the written file"
    }
    data = bytearray((folder / "m_reference.bin").read_bytes())
    data[300] ^= 1
    (folder / "m_reference.bin").write_bytes(data)
    (failed,) = found(folder, "sums", "fail", written=known)
    assert failed.subject == "m_reference.bin"
    assert failed.message.startswith("was changed: its BLAKE3 is ")


def test_sums_that_are_not_those_of_what_was_written_are_held_to_themselves(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    known = tuple(replace(file, sha256=Digest("sha256", "0" * 64)) for file in written(folder))
    assert {f.message for f in found(folder, "sums", written=known)} == {
        "its SHA-256 is that of SHA256SUMS"
    }


def test_missing_and_extra_files_are_named(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    (folder / "m_reference.bin").unlink()
    (folder / "stale.bin").write_bytes(b"x")
    (folder / "sub").mkdir()
    (folder / "sub" / "deep.bin").write_bytes(b"x")
    assert [(f.subject, f.message) for f in found(folder, "sums", "fail")] == [
        ("m_reference.bin", "is missing, SHA256SUMS lists it"),
        ("stale.bin", "is not in SHA256SUMS"),
        ("sub/deep.bin", "is not in SHA256SUMS"),
    ]


def test_a_folder_without_sums_is_not_checkable(tmp_path: Path) -> None:
    (finding,) = found(folders.write(tmp_path, sums=False), "sums")
    assert finding.outcome == "not checkable"
    assert "epctx did not build this folder" in finding.message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("not a sum", "line 3 is not `<64 hex digits>  <name>`"),
        ("0" * 63 + "  short.bin", "line 3 is not `<64 hex digits>  <name>`"),
        ("0" * 64 + " one.bin", "line 3 is not `<64 hex digits>  <name>`"),
        ("0" * 64 + "  ../up.bin", "line 3 names '../up.bin', which is not a bare file name"),
        ("0" * 64 + "  sub/x.bin", "line 3 names 'sub/x.bin', which is not a bare file name"),
        ("0" * 64 + "  /etc/passwd", "line 3 names '/etc/passwd', which is not a bare file name"),
        ("0" * 64 + "  a.bin\r", "line 3 names 'a.bin\\r', which is not a bare file name"),
        ("\\" + "0" * 64 + "  a\\nb", "line 3 names 'a\\\\nb', which is not a bare file name"),
        ("0" * 64 + "  m_ctx.onnx", "line 3 names 'm_ctx.onnx' a second time"),
    ],
)
def test_a_malformed_line_is_a_finding(tmp_path: Path, line: str, message: str) -> None:
    folder = folders.write(tmp_path)
    with (folder / "SHA256SUMS").open("ab") as stream:
        stream.write(line.encode() + b"\n")
    failed = found(folder, "sums", "fail")
    assert [(f.subject, f.message) for f in failed] == [("SHA256SUMS", message)]


def test_the_format_of_sha256sum_in_binary_mode_is_read_too(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    sums = folder / "SHA256SUMS"
    text = sums.read_text(encoding="utf-8").replace("  ", " *").upper().replace("M_", "m_")
    text = text.replace("CTX.ONNX", "ctx.onnx").replace("REFERENCE.BIN", "reference.bin")
    sums.write_bytes(text.encode())
    assert outcomes(found(folder, "sums")) == ["pass", "pass"]


def test_sums_that_are_no_text(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    (folder / "SHA256SUMS").write_bytes(b"\xff\xfe\x00")
    failed = found(folder, "sums", "fail")
    assert failed[0].message.startswith("SHA256SUMS cannot be read: ")


@pytest.mark.needs("links")
def test_links_and_pipes_are_not_read(tmp_path: Path) -> None:
    folder = folders.write(tmp_path / "g")
    binary = folder / "m_reference.bin"
    binary.rename(tmp_path / "elsewhere.bin")
    binary.symlink_to(tmp_path / "elsewhere.bin")
    (failed,) = found(folder, "sums", "fail")
    assert failed.message == ("cannot be read: 'm_reference.bin' is a link; it is in SHA256SUMS")
    binary.unlink()
    os.mkfifo(binary)
    (failed,) = found(folder, "sums", "fail")
    assert "not a regular file" in failed.message


def test_the_lock_is_checked_beside_the_sums(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    right = tuple(
        ExpectedFile(
            name=name,
            digest=of_file(folder / name, algorithm),  # type: ignore[arg-type]
            size=(folder / name).stat().st_size,
        )
        for name, algorithm in (
            *(("SHA256SUMS", "sha256"), ("m_ctx.onnx", "sha256")),
            ("m_reference.bin", "blake3"),
        )
    )
    findings = found(folder, "lock", expected=right)
    assert [f.message for f in findings] == [
        *["its SHA-256 is that of the lock"] * 2,
        "its BLAKE3 is that of the lock",
    ]
    wrong = (
        ExpectedFile(name="m_ctx.onnx", digest=Digest("sha256", "0" * 64)),
        ExpectedFile(name="m_reference.bin", digest=right[2].digest, size=3),
        ExpectedFile(name="gone.bin", digest=right[2].digest),
    )
    messages = {f.subject: f.message for f in found(folder, "lock", "fail", expected=wrong)}
    assert messages["gone.bin"] == "is missing, the lock lists it"
    assert messages["m_reference.bin"] == "has 4096 bytes, not the 3 of the lock"
    assert messages["m_ctx.onnx"].endswith("not 0000000000000000… as in the lock")


def test_one_model_is_checked_with_its_files_only(tmp_path: Path) -> None:
    folder = folders.write(tmp_path)
    (folder / "other.bin").write_bytes(b"x")
    findings = found(folder, "sums", models=("m_ctx.onnx",))
    assert [(f.subject, f.outcome) for f in findings] == [
        ("m_ctx.onnx", "pass"),
        ("m_reference.bin", "pass"),
    ]
