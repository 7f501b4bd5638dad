"""Build a prefill/decode pair that shares one context binary, and show what sharing saves."""

from pathlib import Path

from make_model import make

import epctx

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "llm.onnx")
    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    for file in group.files:
        print(f"{file.size:9} {file.name}")
    print(f"{len(group.models)} models, {len(group.files)} files")


if __name__ == "__main__":
    main()
