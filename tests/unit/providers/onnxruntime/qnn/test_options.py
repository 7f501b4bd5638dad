from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ManifestError
from epctx.providers.onnxruntime.qnn.options import QnnOptions


def test_options_become_what_qnn_takes() -> None:
    options = QnnOptions.parse(
        {
            "soc_model": "sm8650",
            "vtcm_mb": 8,
            "enable_htp_fp16_precision": True,
            "offload_graph_io_quantization": False,
            "backend_type": "htp",
            "partition_binaries": "each",
        }
    )
    assert options.given == {
        "soc_model": "57",
        "vtcm_mb": "8",
        "enable_htp_fp16_precision": "1",
        "offload_graph_io_quantization": "0",
    }
    assert (options.soc, options.vtcm, options.arch, options.one_binary) == (57, 8, None, False)


@pytest.mark.parametrize("name", ["libQnnCpu.so", "libQnnIr.so", "libHtpPrepare.so", "x.txt"])
def test_a_backend_that_makes_no_context_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(ManifestError, match="which is no HTP backend"):
        QnnOptions.parse({"backend_path": str(path)})


def test_a_backend_of_another_sdk(tmp_path: Path) -> None:
    path = tmp_path / "libQnnHtp.so"
    path.touch()
    assert QnnOptions.parse({"backend_path": str(path)}).backend == path
