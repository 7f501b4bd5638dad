"""Reading what is no QNN context binary; real ones are read in tests/integration/test_qnn.py."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from epctx.errors import InvalidGraph, ProviderUnavailable
from epctx.providers.onnxruntime import qnn_binary

INSTALLED = importlib.util.find_spec("onnxruntime_qnn")


def system_library() -> Path:
    import onnxruntime_qnn

    return Path(onnxruntime_qnn.get_qnn_htp_path()).with_name("libQnnSystem.so")


@pytest.mark.skipif(INSTALLED is None, reason="onnxruntime-qnn is not installed")
@pytest.mark.parametrize("data", [b"", b"text", bytes(4096), b"\0\0\0\2\0\0\0\3" + bytes(4096)])
def test_other_files_are_refused(tmp_path, data):
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(InvalidGraph, match="is no QNN context binary"):
        qnn_binary.read(system_library(), path)


@pytest.mark.skipif(INSTALLED is None, reason="onnxruntime-qnn is not installed")
def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(InvalidGraph, match="No such file"):
        qnn_binary.read(system_library(), tmp_path / "missing.bin")


def test_a_library_that_is_none(tmp_path):
    library = tmp_path / "libQnnSystem.so"
    library.write_bytes(b"not a library")
    path = tmp_path / "x.bin"
    path.write_bytes(bytes(64))
    with pytest.raises(ProviderUnavailable, match="the QNN system library cannot be used"):
        qnn_binary.read(library, path)
