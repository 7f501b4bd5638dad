"""Whole models through `epctx build` on QNN and OpenVINO: what they take, how large, how exact.

The light models of the onnx wheel with random weights (their own are constant fills, on which any
comparison passes: real-eps.md section 15), and SqueezeNet quantized by onnxruntime (static, QDQ).
`make soak` prints the table of all of them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime.quantization as quantization
import pytest
import yaml

import epctx
from epctx.engine.report import GroupReport
from epctx.errors import EpctxError
from scripts import random_weights

PROVIDERS = {
    "qnn": {"provider": "QNNExecutionProvider", "options": {"soc_model": "sc8380xp"}},
    "vino": {
        "provider": "OpenVINOExecutionProvider",
        # By itself it computes in bfloat16 where the CPU has units for it (AMX).
        "options": {"load_config": '{"CPU": {"INFERENCE_PRECISION_HINT": "f32"}}'},
    },
}
AVERAGE_POOL_ON_CPU = frozenset({"shufflenet", "inception_v1"})
"""QNN's float16 AveragePool is wrong on the x86 simulator of the HTP: with it ShuffleNet has cosine
0.95 and Inception v1 0.09 (onnxruntime-qnn 2.7.0); without it they are as exact as the others."""
LIGHT = random_weights.light_models()
QUANTIZED = "squeezenet_qdq"
IN_EVERY_RUN = ("squeezenet", QUANTIZED)


# onnxruntime has no types: its class is Any.
class Images(quantization.CalibrationDataReader):  # type: ignore[misc]
    """Seeded random images for the calibration."""

    def __init__(self, model: Path, count: int) -> None:
        (image,) = onnx.load(model, load_external_data=False).graph.input
        shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
        generator = np.random.default_rng(0)
        self._feeds = iter(
            [{image.name: generator.random(shape, np.float32)} for _ in range(count)]
        )

    def get_next(self) -> Mapping[str, np.ndarray] | None:
        return next(self._feeds, None)


def write_model(name: str, folder: Path) -> Path:
    path = folder / f"{name}.onnx"
    if name != QUANTIZED:
        random_weights.convert(LIGHT[name], path)
        return path
    source = folder / "float.onnx"
    random_weights.convert(LIGHT["squeezenet"], source)
    # onnxruntime quantizes what a Softmax gives in steps of 1/256: of 1000 classes nothing is left.
    graph = onnx.load(source, load_external_data=False).graph
    quantization.quantize_static(
        source,
        path,
        Images(source, 4),
        quant_format=quantization.QuantFormat.QDQ,
        activation_type=quantization.QuantType.QUInt8,
        weight_type=quantization.QuantType.QUInt8,
        nodes_to_exclude=[node.name for node in graph.node if node.op_type == "Softmax"],
    )
    return path


@dataclass(frozen=True)
class Row:
    """A line of the table. `cosine`: the least of all outputs and sessions."""

    model: str
    provider: str
    nodes: str
    partitions: int
    binary: int
    cosine: float
    seconds: float

    @classmethod
    def of(cls, group: GroupReport) -> Row:
        assert group.verify is not None
        name, provider = group.group.split("-")
        (model,) = group.models
        taken = sum(partition.nodes for partition in model.partitions)
        return cls(
            model=name,
            provider=provider,
            nodes=f"{taken} of {model.nodes}",
            partitions=len(model.partitions),
            binary=sum(file.size for file in group.files if file.name.endswith(".bin")),
            cosine=min(numbers.comparison.cosine or 0.0 for numbers in group.verify.numbers),
            seconds=max(s.end for s in group.stages) - min(s.start for s in group.stages),
        )

    def __str__(self) -> str:
        return (
            f"{self.model:16}{self.provider:6}{self.nodes:>12}{self.partitions:>12}"
            f"{self.binary:>14,}{self.cosine:>12.6f}{self.seconds:>8.1f} s"
        )


HEAD = f"{'model':16}{'EP':6}{'nodes':>12}{'partitions':>12}{'binary':>14}{'cosine':>12}{'time':>9}"


def build(name: str, providers: Iterable[str], folder: Path) -> Iterator[Row]:
    """Build one model for these EPs, with the build's own check of its numbers."""
    source = write_model(name, folder)
    (image,) = onnx.load(source, load_external_data=False).graph.input
    groups = {}
    for provider in providers:
        groups[f"{name}-{provider}"] = {
            "models": [name],
            "execution_providers": [provider],
            "verify": {"inputs": {"count": 1, "ranges": {image.name: [0, 1]}}},
        }
        if provider == "qnn" and name in AVERAGE_POOL_ON_CPU:
            exclude = {"exclude": {"op_types": ["AveragePool"]}}
            groups[f"{name}-{provider}"]["partition"] = exclude
    document = {
        "schema_version": 1,
        "name": "real",
        "models": {name: {"path": source.name}},
        "execution_providers": PROVIDERS,
        "model_groups": groups,
    }
    manifest = folder / "real.yaml"
    manifest.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    report = epctx.build(manifest, out=folder / "dist", jobs=2, cache=False)
    for group in report.groups:
        assert group.state == "built"
        yield Row.of(group)


def check(row: Row) -> None:
    """OpenVINO is to compute in float32; the HTP does in float16, or in integers."""
    assert row.partitions >= 1 and row.binary > 0
    if row.provider == "vino" and row.model != QUANTIZED:
        assert row.cosine > 0.99999, row
    else:
        assert row.cosine > 0.98, row


on_each_ep = pytest.mark.parametrize(
    "provider",
    [
        pytest.param(n, marks=pytest.mark.needs_device(ep["provider"]))
        for n, ep in PROVIDERS.items()
    ],
)


@on_each_ep
@pytest.mark.parametrize("name", IN_EVERY_RUN)
def test_a_whole_model_on_a_real_ep(name: str, provider: str, tmp_path: Path) -> None:
    (row,) = build(name, [provider], tmp_path)
    print("", HEAD, row, sep="\n")
    check(row)


@pytest.mark.soak
@on_each_ep
def test_every_model_on_a_real_ep(provider: str, tmp_path: Path) -> None:
    failed = []
    print("", HEAD, sep="\n", flush=True)
    for name in [*sorted(LIGHT), QUANTIZED]:
        folder = tmp_path / name
        folder.mkdir()
        try:
            for row in build(name, [provider], folder):
                print(row, flush=True)
                check(row)
        except (EpctxError, AssertionError) as error:
            failed.append(f"{name}: {error}")
        shutil.rmtree(folder)
    assert not failed, failed
