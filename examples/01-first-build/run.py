"""Build the manifest beside this file, then run the built model."""

from pathlib import Path

import numpy as np
from make_model import make

import epctx
from epctx.runtime import InferenceSession

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "digits.onnx")
    report = epctx.build(HERE / "epctx.yaml", out=HERE / "dist")
    for file in report.groups[0].files:
        print(f"{file.size:8} {file.name}")

    group = HERE / "dist" / "first" / "default" / "all"
    with InferenceSession(group / "digits_ctx.onnx") as session:
        image = np.random.default_rng(1).standard_normal((1, 1, 28, 28)).astype(np.float32)
        (probabilities,) = session.run(None, {"image": image})
    print("probabilities:", np.round(probabilities, 3))


if __name__ == "__main__":
    main()
