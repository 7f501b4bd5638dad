"""The light models of the onnx wheel, with random weights, through the reference EP and back."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from epctx.runtime import InferenceSession
from scripts.random_weights import convert, light_models
from tests.kit.building import build, cpu, normal


def kernels(source: Path) -> ort.InferenceSession:
    """The CPU EP without optimization, on weights as they are: the reference EP shares them."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


_SOAKED = ("alexnet", "densenet121", "inception_v2", "vgg19", "zfnet512")
"""Large, or of the ops that the others have: for `make soak`."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.soak) if name in _SOAKED else name
        for name in light_models()
    ],
)
def test_outputs_are_those_of_the_kernels_to_the_bit(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    convert(light_models()[name], source)
    feeds = {arg.name: normal(arg.shape) for arg in cpu(source).get_inputs()}
    (wanted,) = kernels(source).run(None, feeds)
    for embed in (0, 1):
        out = build(tmp_path / str(embed), {name: source}, embed_mode=embed)
        path = out / f"{name}_ctx.onnx"
        for given in (path, path.read_bytes()):
            options = {"ep.context_file_path": str(path)}
            with InferenceSession(given, session_options=options) as session:
                assert session.get_providers()[0] == "ReferenceExecutionProvider"
                (found,) = session.run(None, feeds)
                np.testing.assert_array_equal(found, wanted)
