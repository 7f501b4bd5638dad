"""Each file of two builds: identical, metadata differs, payload differs."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from epctx.commands.reproduce.result import compare_folders
from tests.kit.building import mlp


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    made = (tmp_path / "old", tmp_path / "new")
    for folder in made:
        (folder / "g").mkdir(parents=True)
        onnx.save(mlp(width=8), folder / "g" / "m_ctx.onnx")
        (folder / "g" / "m.bin").write_bytes(b"0123456789")
        (folder / "g" / "SHA256SUMS").write_text("1  m.bin\n2  m_ctx.onnx\n")
    return made


def differing(folders: tuple[Path, Path]) -> dict[str, tuple[str, str | None]]:
    found = compare_folders(*folders)
    assert len(found) >= 3
    return {f.file: (f.state, f.difference) for f in found if f.state != "identical"}


def test_bytes(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "m.bin").write_bytes(b"01234X6789")
    assert differing(folders) == {
        "g/m.bin": ("payload differs", "byte 5 of 10 is the first of 1 that differ")
    }


def test_a_file_that_only_one_has(folders: tuple[Path, Path]) -> None:
    (folders[0] / "g" / "m.bin").unlink()
    (folders[1] / "g" / "m_ctx.onnx").unlink()
    assert differing(folders) == {
        "g/m.bin": ("payload differs", "only the second has it"),
        "g/m_ctx.onnx": ("payload differs", "only the first has it"),
    }


def test_sums_name_the_files(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "SHA256SUMS").write_text("1  m.bin\n3  m_ctx.onnx\n")
    assert differing(folders) == {"g/SHA256SUMS": ("metadata differs", "sums of m_ctx.onnx")}


def test_metadata_is_told_from_payload(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "g" / "m_ctx.onnx"
    proto = onnx.load(path)
    proto.doc_string = "edited"
    onnx.save(proto, path)
    assert differing(folders)["g/m_ctx.onnx"] == (
        "metadata differs",
        "doc_string:  is now edited",
    )
    proto.graph.node[0].input[1] = "w1"
    onnx.save(proto, path)
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "payload differs"
    assert told == "node 'mm0' (MatMul): inputs ['x', 'w0'] is now ['x', 'w1']"


def test_another_serialization_is_metadata(folders: tuple[Path, Path]) -> None:
    path = folders[1] / "g" / "m_ctx.onnx"
    proto = onnx.load(path)
    turned = list(reversed(proto.graph.initializer))
    copies = [onnx.TensorProto.FromString(each.SerializeToString()) for each in turned]
    del proto.graph.initializer[:]
    proto.graph.initializer.extend(copies)
    onnx.save(proto, path)
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "metadata differs"
    assert told is not None
    assert told.startswith("the same model, otherwise serialized: byte ")


def test_a_broken_model_is_bytes(folders: tuple[Path, Path]) -> None:
    (folders[1] / "g" / "m_ctx.onnx").write_bytes(b"broken")
    state, told = differing(folders)["g/m_ctx.onnx"]
    assert state == "payload differs"
    assert told is not None
    assert "the first difference is at byte 0" in told
