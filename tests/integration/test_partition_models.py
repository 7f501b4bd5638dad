"""Real models and ONNX's own node tests: partitioned, cut out, put back, run on ONNX Runtime."""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx.backend.test.case.test_case import TestCase

from epctx.graph.model import Replacement
from epctx.graph.partition import surgery
from epctx.manifest import ModelSource
from epctx.providers.base import Capability, PartitionedModel
from epctx.providers.default import CpuKernels
from epctx.stages import load
from scripts import random_weights
from tests.kit.fake_providers import Taker, partitioned
from tests.kit.onnx_text import session

LOADED_BY_ONNXRUNTIME = {"1.31.1": 1515, "1.32.0": 1765}
"""Of onnx 1.23.2's node tests, by the version of onnxruntime."""

LIGHT = random_weights.light_models()


def put_back(model: ir.Model, result: PartitionedModel) -> None:
    """Splice each partition's own extract, passed through protobuf, in its place."""
    replacements = []
    for partition in result.partitions:
        proto = ir.serde.serialize_model(surgery.extract(model, partition))
        fragment = ir.serde.deserialize_model(proto)
        replacements.append(Replacement(partition=partition, fragment=fragment))
    surgery.splice(model, replacements)


def runnable(label: str, chance: int) -> Taker:
    """Takes what ONNX Runtime can run, and of that a fixed choice of about `chance` in 100."""

    class Runnable(Taker):
        def get_capability(self, model: ir.Model) -> Capability:
            kernels = CpuKernels(model)
            takes = {
                node
                for place, node in enumerate(model.graph)
                if zlib.crc32(f"{label}{place}".encode()) % 100 < chance
                and kernels.refusal(node) is None
            }
            return Taker(takes.__contains__).get_capability(model)

    return Runnable(lambda node: True, label=label)


def listing(model: ir.Model) -> dict[str, object]:
    """All that there is to a main graph but its order and the content of tensors."""
    return {
        str(node.outputs[0].name): (
            node.name,
            node.op_identifier(),
            [value and value.name for value in node.inputs],
            [(value.name, value.type, value.shape) for value in node.outputs],
            sorted(node.attributes),
        )
        for node in model.graph
    }


def same(found: object, wanted: object) -> bool:
    if isinstance(wanted, list):
        return (
            isinstance(found, list) and len(found) == len(wanted) and all(map(same, found, wanted))
        )
    if isinstance(wanted, np.ndarray) and isinstance(found, np.ndarray):
        if wanted.dtype != found.dtype or wanted.shape != found.shape:
            return False
        if wanted.dtype == object:
            return bool(found.tolist() == wanted.tolist())
        return found.tobytes() == wanted.tobytes()
    return found == wanted


def feeds(case: TestCase, run: ort.InferenceSession) -> dict[str, object]:
    assert case.data_sets is not None
    found: dict[str, object] = {}
    for value, given in zip(run.get_inputs(), case.data_sets[0][0], strict=False):
        if isinstance(given, onnx.TensorProto):
            given = onnx.numpy_helper.to_array(given)
        found[value.name] = np.asarray(given) if isinstance(given, np.generic) else given
    return found


def outcome(case: TestCase) -> str | None:
    """What came of one node test; None: onnxruntime does not load it."""
    assert case.model is not None
    try:
        before = session(case.model)
    except Exception:
        return None
    # types between the nodes of an expanded function; a single node has all of its own
    infer = len(case.model.graph.node) > 1
    proto = onnx.shape_inference.infer_shapes(case.model) if infer else case.model
    model = ir.serde.deserialize_model(proto)
    result = partitioned(model, runnable("one", 70 if infer else 100), runnable("two", 70))
    put_back(model, result)
    after = session(model)
    for kind in ("get_inputs", "get_outputs"):
        names = [[v.name for v in getattr(run, kind)()] for run in (before, after)]
        assert names[0] == names[1], case.name
    try:
        values = feeds(case, before)
        wanted = before.run(None, values)
    except Exception:
        return "not run"  # numpy has no such type, or onnxruntime has no such case
    assert same(after.run(None, values), wanted), case.name
    return "in parts" if len(result.partitions) > 1 else "whole" if result.partitions else "none"


@pytest.mark.soak
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_every_node_test_that_onnxruntime_loads_computes_the_same(
    onnx_node_tests: Sequence[TestCase],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.ERROR, logger="onnx_ir")
    found = Counter(map(outcome, onnx_node_tests))
    del found[None]
    print(found)
    assert sum(found.values()) == LOADED_BY_ONNXRUNTIME[ort.__version__]
    assert found["not run"] <= 150, "bfloat16, float8 and the like, which numpy has not"
    assert found["in parts"] >= 200
    assert found["none"] <= 60, "strings, sequences, float8 and the like at the model's border"


@pytest.mark.parametrize("name", ["squeezenet", "shufflenet", "inception_v1", "resnet50"])
def test_light_models_compute_the_same(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.onnx"
    random_weights.convert(LIGHT[name], path)
    model = load.run(ModelSource(name=name, path=path)).model
    tensors = {
        key: value.const_value for key, value in model.graph.initializers.items() if value.uses()
    }
    result = partitioned(model, runnable("one", 50), runnable("two", 50))
    assert {partition.provider for partition in result.partitions} == {0, 1}
    assert result.declined
    replacements = [
        Replacement(partition=partition, fragment=surgery.extract(model, partition))
        for partition in result.partitions
    ]
    surgery.splice(model, replacements)
    now = {key: value.const_value for key, value in model.graph.initializers.items()}
    assert now == tensors, "every weight is the same tensor object, on disk as before"
    ir.save(model, tmp_path / "after.onnx", external_data="after.data")
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    runs = [
        ort.InferenceSession(each, options, providers=["CPUExecutionProvider"])
        for each in (path, tmp_path / "after.onnx")
    ]
    (image,) = runs[0].get_inputs()
    values = {image.name: np.random.default_rng(0).random(image.shape, np.float32)}
    left, right = (run.run(None, values) for run in runs)
    assert same(left, right)


@pytest.mark.parametrize("name", sorted(LIGHT))
def test_light_models_put_back_are_node_for_node_the_same(name: str) -> None:
    model = load.run(ModelSource(name=name, path=LIGHT[name])).model
    before = listing(model)
    weights = sorted(name for name, value in model.graph.initializers.items() if value.uses())
    put_back(model, partitioned(model, runnable("one", 50), runnable("two", 50)))
    assert listing(model) == before
    assert sorted(model.graph.initializers) == weights
