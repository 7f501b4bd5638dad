"""The generators in scripts/ make what comparisons need: models whose outputs can be wrong."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import numpy_helper

from scripts import random_weights, transformer

Floats = npt.NDArray[np.float32]
LIGHT = random_weights.light_models()


def session(path: Path) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.disable_prepacking", "1")
    return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def run_images(path: Path, count: int) -> list[Floats]:
    run = session(path)
    (image,) = run.get_inputs()
    generator = np.random.default_rng(0)
    images = (generator.random(image.shape, np.float32) for _ in range(count))
    return [run.run(None, {image.name: item})[0].ravel() for item in images]


def spread(left: Floats, right: Floats) -> float:
    """Largest difference, relative to the largest magnitude: what verification compares."""
    return float(np.abs(left - right).max() / np.abs(right).max())


_LARGE = ("alexnet", "densenet121", "vgg19", "zfnet512")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.soak) if n in _LARGE else n for n in sorted(LIGHT)],
)
def test_random_weights_show_the_input_and_one_wrong_weight(name: str, tmp_path: Path) -> None:
    target = tmp_path / f"{name}.onnx"
    random_weights.convert(LIGHT[name], target)
    outputs = run_images(target, 2)
    for output in outputs:
        assert np.isfinite(output).all()
        assert output.std() > 0.03 * np.abs(output).max()
    assert spread(*outputs) > 0.01

    filters = [node.inputs[1] for node in ir.load(target).graph if node.op_type == "Conv"]
    middle = filters[len(filters) // 2]
    assert middle is not None
    tensor = middle.const_value
    assert isinstance(tensor, ir.ExternalTensor)
    assert tensor.offset is not None
    weights = np.memmap(tensor.path, np.float32, "r+", tensor.offset, tensor.shape.numpy())
    worst = np.unravel_index(np.abs(weights).argmax(), weights.shape)
    weights[worst] = -weights[worst]
    weights.flush()
    assert spread(run_images(target, 1)[0], outputs[0]) > 1e-5


CONFIG = transformer.Config(layers=2, hidden=64, heads=4, kv_heads=2, vocab=97, tied=True)


def decode(
    run: ort.InferenceSession, ids: npt.NDArray[np.int64], past: list[Floats], mask: int
) -> tuple[Floats, list[Floats]]:
    names = [item.name for item in run.get_inputs()]
    seen = np.full((ids.shape[0], past[0].shape[2]), mask, np.int64)
    logits, *present = run.run(None, dict(zip(names, (ids, seen, *past), strict=True)))
    return logits, present


def cache(length: int) -> list[Floats]:
    shape = (2, CONFIG.kv_heads, length, CONFIG.head_dim)
    generator = np.random.default_rng(1)
    return [generator.random(shape, np.float32) for _ in range(2 * CONFIG.layers)]


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> ort.InferenceSession:
    path = tmp_path_factory.mktemp("transformer") / "decoder.onnx"
    transformer.write(path, CONFIG)
    onnx.checker.check_model(str(path), full_check=True)
    return session(path)


def test_the_form_for_npus_computes_the_same(decoder: ort.InferenceSession, tmp_path: Path) -> None:
    """With a bias that says what the masks say; weights of norms do no harm where they are 1."""
    ones, npu = tmp_path / "ones.onnx", tmp_path / "npu.onnx"
    transformer.write(ones, CONFIG)
    model = onnx.load(ones)
    norms = [t for t in model.graph.initializer if "norm" in t.name]
    assert len(norms) == 2 * CONFIG.layers + 1
    for tensor in norms:
        tensor.CopyFrom(numpy_helper.from_array(np.ones(CONFIG.hidden, np.float32), tensor.name))
    onnx.save(model, ones)
    transformer.write(npu, dataclasses.replace(CONFIG, npu=True))
    onnx.checker.check_model(str(npu), full_check=True)
    ids, past = np.random.default_rng(0).integers(0, CONFIG.vocab, (2, 5)), cache(3)
    allowed = np.concatenate([np.ones((5, 3)), np.tril(np.ones((5, 5)))], axis=1)
    bias = np.where(allowed, 0, transformer.MASKED).astype(np.float32)
    given = {
        "input_ids": ids,
        "past_mask": np.ones((2, 3), np.int64),
        "attention_bias": np.broadcast_to(bias, (2, 1, 5, 8)),
    }
    run = session(npu)
    names = [item.name for item in run.get_inputs()]
    given |= dict(zip(names[3:], past, strict=True))
    expected, _ = decode(session(ones), ids, past, mask=1)
    assert spread(run.run(None, given)[0], expected) < 1e-5
    weighted, _ = decode(decoder, ids, past, mask=1)
    assert spread(weighted, expected) > 1e-3
