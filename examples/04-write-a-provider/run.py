"""Build the manifest beside this file with this folder's provider, for both targets."""

from pathlib import Path

from make_model import make

import epctx

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "mixer.onnx")
    for group in epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups:
        print(f"{group.group} for {group.target}")
        for model in group.models:
            taken = sum(partition.nodes for partition in model.partitions)
            print(f"  {model.name}: the delegate takes {taken} of {model.nodes} nodes")
        for file in group.files:
            print(f"  {file.size:9} {file.name}")


if __name__ == "__main__":
    main()
