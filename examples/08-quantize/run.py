"""Quantize a float model with samples, compile it for a Snapdragon, count the digits it reads."""

import json
from pathlib import Path

import numpy as np
from make_model import images, make
from make_model import run as float_scores
from onnxruntime import SessionOptions

import epctx
from epctx.runtime import InferenceSession

HERE = Path(__file__).parent


def main() -> None:
    model = make(HERE)
    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    for file in group.files:
        print(f"{file.size:8} {file.name}")
    quantization = group.models[0].quantized
    assert quantization is not None
    for tensor in (*quantization.outputs, *quantization.tensors):
        print(f"{tensor.sqnr:6.1f} dB  {tensor.name}")
    ranges = json.loads((HERE / "epctx.ranges.json").read_text())
    (calibration,) = ranges["calibrations"].values()
    print("ranges, beside the lock:", ", ".join(calibration["ranges"]))

    options = SessionOptions()
    options.log_severity_level = 3  # errors only
    pictures, digits = images(20, seed=2)
    folder = HERE / "dist" / (group.folder or "")
    with InferenceSession(folder / "digits_ctx.onnx", options) as session:
        scores = [session.run(None, {"image": image[None]})[0][0] for image in pictures]
    right = int((float_scores(model, pictures).argmax(1) == digits).sum())
    print(
        f"of {len(digits)} new images the float model reads {right}, and the one in integers",
        end=" ",
    )
    print(int((np.array(scores).argmax(1) == digits).sum()))


if __name__ == "__main__":
    main()
