"""Damaged models: always findings or an error of ours, never something that leaks."""

from __future__ import annotations

import random
import warnings
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from epctx.commands.inspect import command
from epctx.errors import ModelError
from tests.kit import folders


def whole(folder: Path) -> bytes:
    """A folder whose model has something of everything; the model's bytes."""
    outside = TensorProto(name="w", data_type=1, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", "m.data"), ("offset", "0"), ("length", "16")):
        outside.external_data.add(key=key, value=value)
    inside = numpy_helper.from_array(np.zeros((40, 40), np.float32), "large")
    made = folders.model(folders.context_node(notes="x"), initializers=[outside, inside])
    made.producer_name = "epctx"
    onnx.helper.set_model_props(
        made, {"ep_compatibility_info.ReferenceExecutionProvider": "v1", "other": "x"}
    )
    folders.write(folder, made, sums=False)
    (folder / "m.data").write_bytes(bytes(16))
    return (folder / "m_ctx.onnx").read_bytes()


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Some bytes changed, most of them outside the zeros of the weight; sometimes cut short."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 5])):
        at = rng.choice([rng.randrange(600), len(data) - 1 - rng.randrange(600)])
        data[at] = rng.randrange(256) if rng.random() < 0.5 else data[at] ^ 1 << rng.randrange(8)
    return bytes(data[: rng.randrange(len(data))]) if rng.random() < 0.1 else bytes(data)


@pytest.mark.parametrize("seed", range(2))
def test_damage_is_found_and_nothing_leaks(tmp_path: Path, seed: int) -> None:
    content = whole(tmp_path)
    rng = random.Random(seed)
    failed = 0
    for _ in range(50):
        (tmp_path / "m_ctx.onnx").write_bytes(damaged(content, rng))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            report = folders.report(tmp_path, group=folders.group())
            failed += any(finding.outcome == "fail" for finding in report.findings)
            try:
                command.inspect(tmp_path / "m_ctx.onnx")
            except ModelError:
                continue
    assert failed > 30
