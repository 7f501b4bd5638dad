from __future__ import annotations

from pathlib import Path

import pytest

from epctx.errors import ManifestError
from epctx.manifest import OptionValue
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
    assert (options.chips, options.vtcm, options.arch) == ((57,), 8, None)
    assert not options.one_binary


@pytest.mark.parametrize("name", ["libQnnCpu.so", "libQnnIr.so", "libHtpPrepare.so", "x.txt"])
def test_a_backend_that_makes_no_context_is_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    with pytest.raises(ManifestError, match="which is not an HTP backend"):
        QnnOptions.parse({"backend_path": str(path)})


def test_a_backend_of_another_sdk(tmp_path: Path) -> None:
    path = tmp_path / "libQnnHtp.so"
    path.touch()
    assert QnnOptions.parse({"backend_path": str(path)}).backend == path


def test_several_chips_are_one_option() -> None:
    options = QnnOptions.parse({"soc_model": ("sc8380xp", "57", "SM8750")})
    assert (options.chips, options.given["soc_model"]) == ((60, 57, 69), "60,57,69")
    assert QnnOptions.parse({"soc_model": ("60",)}).given == {"soc_model": "60"}


@pytest.mark.parametrize(
    ("chips", "more", "words"),
    [
        (("60", "60"), {}, "60 and 60 are 60 (sc8380xp, v73)"),
        (("60", "SC8380XP"), {}, "60 and SC8380XP are 60 (sc8380xp, v73)"),
        (("60", "060"), {}, "60 and 060 are 60 (sc8380xp, v73)"),
        (("60", "sm9999"), {}, "'sm9999', which is not the name of a chip"),
        (("60", "0"), {}, "soc_model lists 0"),
        (("60", "57"), {"htp_arch": "73"}, "soc_model and htp_arch are both given"),
        (("60", "57"), {"partition_binaries": "one"}, "partition_binaries is one"),
        (("60", "88"), {"htp_bf16_enable": True}, "needs a soc_model of at least 88"),
    ],
)
def test_several_chips_that_are_refused(
    chips: tuple[str, ...], more: dict[str, OptionValue], words: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        QnnOptions.parse({"soc_model": chips, **more})
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["a,b", "a:b"])
def test_a_path_that_qnn_would_split_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "lib.so").touch()
    with pytest.raises(ManifestError, match="which contains ',' or ':'"):
        QnnOptions.parse({"op_packages": "Op:lib.so:Provider", "op_packages_dir": str(folder)})
