"""Build a model for three lengths of text, and run each text in the smallest that fits."""

from pathlib import Path

import numpy as np
import onnxruntime
from make_model import make

import epctx
from epctx.runtime import InferenceSession

HERE = Path(__file__).parent


def main() -> None:
    make(HERE / "models" / "bert.onnx")
    (group,) = epctx.build(HERE / "epctx.yaml", out=HERE / "dist").groups
    folder = HERE / "dist" / (group.folder or "")
    for file in group.files:
        print(f"{file.size:9} {file.name}")

    source = onnxruntime.InferenceSession(HERE / "models" / "bert.onnx")
    sizes = {each["sequence"]: name for name, each in group.buckets["bert"].items()}
    with Buckets(folder, sizes) as buckets:
        for length in (5, 32, 33, 100):
            text = np.random.default_rng(length).integers(0, 1024, (1, length))
            name, scores = buckets.run(text)
            exact = source.run(None, {"input_ids": text, "attention_mask": np.ones_like(text)})[0]
            error = np.abs(scores - exact).max() / np.abs(exact).max()
            print(f"{length:3} tokens in {name}: best {scores.argmax()}, error {error:.0e}")


class Buckets:
    """A session for each bucket. The sessions share one context, which the first session reads."""

    def __init__(self, folder: Path, sizes: dict[int, str]) -> None:
        options = onnxruntime.SessionOptions()
        options.add_session_config_entry("ep.share_ep_contexts", "1")
        self._sizes = dict(sorted(sizes.items()))
        self._sessions = {
            name: InferenceSession(folder / f"{name}_ctx.onnx", options)
            for name in self._sizes.values()
        }

    def __enter__(self) -> "Buckets":
        return self

    def __exit__(self, *_: object) -> None:
        for session in reversed(self._sessions.values()):
            session.close()

    def run(self, ids: np.ndarray) -> tuple[str, np.ndarray]:
        """Run a text in the smallest bucket that fits; return the bucket's name and the scores.

        The mask excludes the padding, so the padding changes nothing.
        """
        length = ids.shape[1]
        size = next((size for size in self._sizes if length <= size), None)
        if size is None:
            raise ValueError(f"{length} tokens do not fit into any bucket: {[*self._sizes]}")
        name, padding = self._sizes[size], ((0, 0), (0, size - length))
        feeds = {
            "input_ids": np.pad(ids, padding),
            "attention_mask": np.pad(np.ones_like(ids), padding),
        }
        (scores,) = self._sessions[name].run(None, feeds)
        return name, scores


if __name__ == "__main__":
    main()
