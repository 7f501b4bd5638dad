"""Build a prefill/decode pair that shares one context binary, and show what sharing saves."""

import subprocess
import sys
from pathlib import Path

import epctx

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
SIZES = ["--layers", "2", "--hidden", "128", "--vocab", "512"]


def main() -> None:
    model = HERE / "models" / "llm.onnx"
    model.parent.mkdir(exist_ok=True)
    command = [sys.executable, "-m", "scripts.transformer", str(model), *SIZES]
    subprocess.run(command, cwd=ROOT, check=True)

    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    for file in group.files:
        print(f"{file.size:9} {file.name}")
    print(f"{len(group.models)} models, {len(group.files)} files")


if __name__ == "__main__":
    main()
