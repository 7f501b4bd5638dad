"""Build one model for two EPs and the default EP, and show which EP took which nodes."""

from pathlib import Path

from make_model import make

import epctx

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "detector.onnx")
    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    (model,) = group.models
    for partition in model.partitions:
        print(f"{partition.provider}: {partition.nodes} nodes")
    for node in model.declined:
        reasons = "; ".join(f"{ep}: {reason}" for ep, reason in node.reasons)
        print(f"default EP: {node.node} ({node.op_type}), because {reasons}")
    for file in group.files:
        print(f"{file.size:9} {file.name}")


if __name__ == "__main__":
    main()
