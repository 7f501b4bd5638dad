"""Compile a model for two Snapdragons on an x86-64 computer, and run it in QNN's simulator."""

import subprocess
import sys
from pathlib import Path

import numpy as np
from onnxruntime import SessionOptions

import epctx
from epctx.runtime import InferenceSession

HERE = Path(__file__).parent


def main() -> None:
    options = SessionOptions()
    options.log_severity_level = 3  # errors only
    (HERE / "models").mkdir(exist_ok=True)
    example = ["init", "--example", "--force", "--quiet", "--out", "models/epctx.yaml"]
    subprocess.run([sys.executable, "-m", "epctx", *example], cwd=HERE, check=True)

    for group in epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups:
        for file in group.files:
            print(f"{group.target:12} {file.size:8} {file.name}")
        folder = HERE / "dist" / (group.folder or "")
        with InferenceSession(folder / "digits_ctx.onnx", options) as session:
            image = np.random.default_rng(1).random((1, 1, 28, 28), np.float32)
            (scores,) = session.run(None, {"image": image})
            print(f"{group.target:12} {session.get_providers()[0]}: a {int(np.argmax(scores))}")


if __name__ == "__main__":
    main()
