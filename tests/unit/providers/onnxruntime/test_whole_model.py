from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
import pytest

from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Partition
from epctx.graph.partition import surgery
from epctx.inference.values import to_python
from epctx.providers.base import PartitionedModel
from epctx.providers.onnxruntime.whole_model import GeneratingModel
from tests.kit import onnx_text

DIAMOND = """g (float[4] x, float[4] z) => (float[4] y, float[4] w, float[4] k)
<float[4] k = {1, 2, 3, 4}> {
    [a] a = Abs (x)
    [b] b = Neg (a)
    [c] c = Exp (a)
    [d] d = Add (b, c)
    [e] e = Mul (d, z)
    [f] y = Sub (e, b)
    [g] w = Relu (x)
}"""


def cut(model: ir.Model, *groups: str) -> PartitionedModel:
    flow = Dataflow(model)
    place = {node.name: index for index, node in enumerate(flow.nodes)}
    partitions = tuple(flow.cut(0, [place[name] for name in group.split()]) for group in groups)
    return PartitionedModel(
        name="m", model=model, partitions=partitions, declined=(), nodes=len(flow.nodes)
    )


class OnCpu:
    """Stands for an EP: runs a partition on the CPU, and counts."""

    def __init__(self, model: PartitionedModel) -> None:
        self._models = {
            id(partition): surgery.extract(model.model, partition) for partition in model.partitions
        }
        self.ran: list[tuple[str, ...]] = []

    def __call__(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> dict[str, ort.OrtValue]:
        assert set(feeds) == {value.name for value in partition.inputs}
        self.ran.append(tuple(str(node.name) for node in partition.nodes))
        session = onnx_text.session(self._models[id(partition)])
        names = [output.name for output in session.get_outputs()]
        values = session.run_with_ort_values(names, dict(feeds))
        return dict(zip(names, values, strict=True))


@pytest.mark.parametrize(
    "groups",
    [
        ("a b c d e f g",),
        ("b", "d"),
        ("a", "e f"),
        ("b c", "f"),
        ("c", "e"),
        ("a b", "d e"),
        (),
    ],
)
def test_pieces_together_are_the_model(tmp_path: Path, groups: tuple[str, ...]) -> None:
    rng = np.random.default_rng(0)
    feeds = {name: rng.standard_normal(4).astype(np.float32) for name in "xz"}
    model = onnx_text.model(DIAMOND)
    expected = onnx_text.run(model, feeds)
    partitioned = cut(model, *groups)
    on_cpu = OnCpu(partitioned)
    whole = GeneratingModel(partitioned, tmp_path / "rest")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    found = whole.run(values, on_cpu)
    assert list(found) == ["y", "w", "k"]
    for want, have in zip(expected, found.values(), strict=True):
        np.testing.assert_array_equal(want, to_python(have))
    assert sorted(on_cpu.ran) == sorted(tuple(group.split()) for group in groups)


def test_it_may_run_again_and_after_the_model_is_gone(tmp_path: Path) -> None:
    """The pipeline replaces the partitions before anything is run."""
    model = onnx_text.model(DIAMOND)
    feeds = {name: np.ones(4, np.float32) for name in "xz"}
    expected = onnx_text.run(model, feeds)
    partitioned = cut(model, "b", "e")
    on_cpu = OnCpu(partitioned)
    whole = GeneratingModel(partitioned, tmp_path / "rest")
    for node in list(model.graph):
        node.op_type = "Broken"
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in feeds.items()}
    for _ in range(2):
        np.testing.assert_array_equal(expected[0], to_python(whole.run(values, on_cpu)["y"]))
    assert len(on_cpu.ran) == 4


def test_a_value_whose_type_nobody_infers_crosses_between_pieces(tmp_path: Path) -> None:
    text = """g (float[4] x) => (float[4] y) {
        [a] a = com.microsoft.QuickGelu (x)
        [b] b = Cast <to = 1> (a)
        [c] c = Neg (b)
        [d] y = Add (a, c)
    }"""
    model = onnx_text.model(text, opsets='"" : 17, "com.microsoft" : 1')
    given = {"x": np.arange(4, dtype=np.float32)}
    (expected,) = onnx_text.run(model, given)
    partitioned = cut(model, "c")
    assert partitioned.partitions[0].inputs[0].dtype == ir.DataType.FLOAT
    assert next(iter(model.graph)).outputs[0].type is None
    whole = GeneratingModel(partitioned, tmp_path / "rest")
    values = {name: ort.OrtValue.ortvalue_from_numpy(array) for name, array in given.items()}
    found = whole.run(values, OnCpu(partitioned))
    np.testing.assert_array_equal(expected, to_python(found["y"]))
