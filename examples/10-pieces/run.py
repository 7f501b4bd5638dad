"""Build prefill and decode in four separately compiled pieces, and run prefill as one model."""

import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from make_model import make

import epctx
from epctx.runtime import InferenceSession

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "llm.onnx")
    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    folder = HERE / "dist" / (group.folder or "")
    for file in group.files:
        print(f"{file.size:9} {file.name}")

    compiled = onnx.load(folder / "prefill_ctx.onnx")
    metadata = {each.key: each.value for each in compiled.metadata_props}
    cut_at = ", ".join(name for cut in json.loads(metadata["epctx_pieces"]) for name in cut)
    print(f"{len(compiled.graph.node)} EPContext nodes, cut at {cut_at}")

    rng = np.random.default_rng(0)
    session = InferenceSession(folder / "prefill_ctx.onnx")
    feeds: dict[str, np.ndarray] = {
        each.name: rng.standard_normal(each.shape).astype(np.float32)
        for each in session.get_inputs()
        if each.name != "input_ids"
    }
    feeds["input_ids"] = rng.integers(0, 512, (1, 16))
    source = onnxruntime.InferenceSession(HERE / "models" / "llm.onnx")
    (expected,), (logits,) = source.run(["logits"], feeds), session.run(["logits"], feeds)
    error = np.abs(logits - expected).max() / np.abs(expected).max()
    print(f"one session for all pieces: error {error:.0e}")


if __name__ == "__main__":
    main()
