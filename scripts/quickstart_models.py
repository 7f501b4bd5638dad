"""Make the models that the checked-in manifests and examples build, in manifests/models.

    python -m scripts.quickstart_models [FOLDER]

A decoder-only transformer, in the form for NPUs too, and light models of the onnx wheel with random
weights; seeded, so the same bytes everywhere. A model that is there already is left alone.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path

from scripts import random_weights, transformer

FOLDER = Path(__file__).parent.parent / "manifests" / "models"
TINY_LLM = transformer.Config(layers=2, hidden=256, heads=8, kv_heads=2, vocab=2048)
TINY_LLM_NPU = dataclasses.replace(TINY_LLM, npu=True)
LIGHT = ("squeezenet", "shufflenet")


def write(folder: Path) -> None:
    """Write what is missing in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, config in (("tiny_llm", TINY_LLM), ("tiny_llm_npu", TINY_LLM_NPU)):
        target = folder / f"{name}.onnx"
        if not target.exists():
            transformer.write(target, config)
    for name in LIGHT:
        target = folder / f"{name}.onnx"
        if not target.exists():
            random_weights.convert(random_weights.light_models()[name], target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder", type=Path, nargs="?", default=FOLDER)
    write(parser.parse_args().folder)


if __name__ == "__main__":
    main()
