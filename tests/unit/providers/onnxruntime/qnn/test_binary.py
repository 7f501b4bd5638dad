"""Reading what is not a QNN context binary; real ones are read in tests/integration/test_qnn.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.providers.onnxruntime.qnn import binary as qnn_binary

INSTALLED = importlib.util.find_spec("onnxruntime_qnn")


def system_library() -> Path:
    import onnxruntime_qnn

    return Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libQnnSystem.so")


@pytest.mark.needs("module onnxruntime_qnn")
@pytest.mark.parametrize("data", [b"", b"text", bytes(4096), b"\0\0\0\2\0\0\0\3" + bytes(4096)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(InvalidGraph, match="is not a QNN context binary"):
        qnn_binary.read(system_library(), path)


@pytest.mark.needs("module onnxruntime_qnn")
def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidGraph, match="No such file"):
        qnn_binary.read(system_library(), tmp_path / "missing.bin")


def test_a_library_that_is_none(tmp_path: Path) -> None:
    library = tmp_path / "libQnnSystem.so"
    library.write_bytes(b"not a library")
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(64))
    with pytest.raises(ProviderUnavailable, match="the QNN system library cannot be used"):
        qnn_binary.read(library, path)


def test_a_binary_is_asked_about_once_until_it_is_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library is a mock: what counts is how often it is asked."""
    asked = []

    def answer(library: Path, binary: Path) -> qnn_binary.QnnBinary:
        asked.append(binary.name)
        return qnn_binary.QnnBinary(contexts=(), shared=None)

    monkeypatch.setattr(qnn_binary, "_read_apart", answer)
    path = tmp_path / "scratch.bin"
    path.write_bytes(b"a context")
    first = qnn_binary.read(tmp_path / "lib.so", path)
    path = path.rename(tmp_path / "a_qnn.bin")
    assert qnn_binary.read(tmp_path / "lib.so", path) is first
    path.write_bytes(b"another one")
    qnn_binary.read(tmp_path / "lib.so", path)
    qnn_binary.read(tmp_path / "other.so", path)
    assert asked == ["scratch.bin", "a_qnn.bin", "a_qnn.bin"]


@pytest.mark.needs("module onnxruntime_qnn")
def test_in_this_process_is_said_what_a_process_of_its_own_says(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(b"text")
    said = []
    for read in (qnn_binary.read, qnn_binary.read_here):
        with pytest.raises(InvalidGraph, match="is not a QNN context binary") as refused:
            read(system_library(), path)
        said.append(refused.value.why)
    assert said[0] == said[1]
    with pytest.raises(ProviderUnavailable, match="system library cannot be used"):
        qnn_binary.read_here(path, path)
