"""Reading what is no QNN context binary; real ones are read in tests/integration/test_qnn.py."""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.providers.onnxruntime.qnn import binary as qnn_binary
from epctx.providers.onnxruntime.qnn import binary_reader

INSTALLED = importlib.util.find_spec("onnxruntime_qnn")


def system_library() -> Path:
    import onnxruntime_qnn

    return Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libQnnSystem.so")


@pytest.mark.needs("module onnxruntime_qnn")
@pytest.mark.parametrize("data", [b"", b"text", bytes(4096), b"\0\0\0\2\0\0\0\3" + bytes(4096)])
def test_other_files_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(InvalidGraph, match="is no QNN context binary"):
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

    monkeypatch.setattr(qnn_binary, "_asked", answer)
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
def test_the_process_that_was_expected_is_the_one_that_is_asked(tmp_path: Path) -> None:
    library = system_library()
    qnn_binary.expect(library)
    qnn_binary.expect(library)
    (waiting,) = qnn_binary._WAITING.values()
    path = tmp_path / "x.bin"
    path.write_bytes(b"text")
    with pytest.raises(InvalidGraph, match="is no QNN context binary"):
        qnn_binary.read(library, path)
    assert waiting.returncode == binary_reader.REFUSED
    assert not qnn_binary._WAITING


def test_a_process_that_is_never_asked_ends_with_its_parent(tmp_path: Path) -> None:
    library = tmp_path / "libQnnSystem.so"
    code = (
        "import pathlib, sys; from epctx.providers.onnxruntime.qnn import binary;"
        "binary.expect(pathlib.Path(sys.argv[1])); (waiting,) = binary._WAITING.values();"
        "print(waiting.pid)"
    )
    done = subprocess.run([sys.executable, "-c", code, library], capture_output=True, text=True)
    assert done.returncode == 0
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(done.stdout)).wait(timeout=30)
