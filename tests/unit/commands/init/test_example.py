from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from epctx.commands.init import example


def test_it_is_a_classifier_that_onnxruntime_runs(tmp_path: Path) -> None:
    path = example.write(tmp_path / "new")
    assert path == tmp_path / "new" / "digits.onnx"
    onnx.checker.check_model(onnx.load(path), full_check=True)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    images = np.random.default_rng(0).random((2, 1, 1, 28, 28), np.float32)
    scores = [session.run(None, {"image": image})[0] for image in images]
    assert scores[0].shape == (1, 10) and not np.allclose(scores[0], scores[1])
