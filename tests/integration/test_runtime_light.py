"""The light models of the onnx wheel, with random weights, through the reference EP and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from epctx.runtime import InferenceSession
from scripts.random_weights import convert, light_models
from tests.kit.building import Array, build, cpu, normal


def check(found: Array, wanted: Array) -> None:
    """Cosine >= 0.999999, largest error <= 1e-5 of the largest magnitude."""
    a, b = found.astype(np.float64).ravel(), wanted.astype(np.float64).ravel()
    assert found.shape == wanted.shape
    assert np.abs(a - b).max() <= 1e-5 * np.abs(b).max()
    assert a @ b >= 0.999999 * np.linalg.norm(a) * np.linalg.norm(b)


@pytest.mark.parametrize("name", light_models())
def test_outputs_agree_with_a_stock_session(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    convert(light_models()[name], source)
    stock = cpu(source)
    feeds = {arg.name: normal(arg.shape) for arg in stock.get_inputs()}
    (wanted,) = stock.run(None, feeds)
    del stock
    for embed in (0, 1):
        out = build(tmp_path / str(embed), {name: source}, embed_mode=embed)
        path = out / f"{name}_ctx.onnx"
        for given in (path, path.read_bytes()):
            options = {"ep.context_file_path": str(path)}
            with InferenceSession(given, session_options=options) as session:
                assert session.get_providers()[0] == "ReferenceExecutionProvider"
                (found,) = session.run(None, feeds)
                check(found, wanted)
