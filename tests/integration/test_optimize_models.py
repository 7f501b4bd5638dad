"""Real models, optimized, compute what they did: bit for bit where only exact folding happened."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper
from onnx.backend.test.case.test_case import TestCase

from epctx.errors import EpctxError
from epctx.graph import store
from epctx.graph.model import OptimizedModel
from epctx.graph.serde import canonical
from epctx.manifest import ModelSource
from epctx.stages import load, optimize
from scripts import random_weights, transformer
from tests.kit import onnx_text, optimizing
from tests.kit.optimizing import settings

LIGHT = random_weights.light_models()
_LARGE = ("densenet121", "vgg19", "zfnet512")
"""Whose files are written and read for seconds, and have no fill that the others have not."""
SAMPLED = [
    pytest.param(name, marks=pytest.mark.soak) if name in _LARGE else name for name in sorted(LIGHT)
]
Floats = npt.NDArray[np.float32]


def optimized(path: Path, folder: Path, level: str, **fixed: int) -> OptimizedModel:
    folder.mkdir()
    source = ModelSource(name=path.stem, path=path, dimensions=fixed)
    return optimize.run(load.run(source), settings(level), folder)


def written(model: OptimizedModel, path: Path) -> Path:
    with path.open("wb") as stream:
        for chunk in canonical.chunks(model.model):
            stream.write(chunk)
    return path


def outputs(path: Path) -> list[optimizing.Array]:
    run = optimizing.session(path)
    generator = np.random.default_rng(0)
    feeds = {each.name: generator.random(each.shape, np.float32) for each in run.get_inputs()}
    return list(run.run(None, feeds))


@pytest.mark.parametrize("name", SAMPLED)
def test_fills_of_the_light_models_become_initializers(name: str, tmp_path: Path) -> None:
    """real-eps.md section 14; the weights go through the store, as they do in a build."""
    folder = tmp_path / "scratch"
    result = optimized(LIGHT[name], folder, "basic")
    made = set(optimizing.ops(result)) & {"ConstantOfShape", "Unsqueeze", "Dropout", "Identity"}
    assert not made
    assert all(
        value is None or value.producer() is not None or value.is_graph_input()
        for node in result.model.graph
        for value in node.inputs[:1]
    ), "what flows is made by nodes, what is constant is an initializer"
    store.write(result, folder)
    again = written(store.read(folder), tmp_path / "optimized.onnx")
    optimizing.assert_same_bits(outputs(again), outputs(LIGHT[name]))
    discard(tmp_path)


@pytest.mark.wide(2)
@pytest.mark.parametrize("name", sorted(LIGHT.keys() - {"alexnet", "vgg19", "zfnet512"}))
def test_light_models_with_random_weights_compute_the_same(name: str, tmp_path: Path) -> None:
    source = tmp_path / f"{name}.onnx"
    random_weights.convert(LIGHT[name], source)
    before = outputs(source)
    folder = tmp_path / "extended"
    result = optimized(source, folder, "extended")
    assert list(folder.iterdir()) == [], "no pass touched a weight, so none was written"
    optimizing.assert_same_bits(outputs(written(result, tmp_path / "extended.onnx")), before)
    discard(tmp_path)


def discard(folder: Path) -> None:
    """Half a gigabyte for some models: not to be kept for three test runs."""
    for path in folder.rglob("*"):
        if path.suffix in (".data", ".onnx"):
            path.unlink()


CONFIG = transformer.Config(layers=2, hidden=64, heads=4, kv_heads=2, vocab=97, tied=True)
SIZES = {"batch": 2, "sequence": 5, "past": 3}


@pytest.mark.parametrize("level", ["basic", "extended"])
@pytest.mark.parametrize("fixed", [{}, SIZES], ids=["dynamic", "static"])
def test_a_transformer_computes_the_same(level: str, fixed: dict[str, int], tmp_path: Path) -> None:
    source = tmp_path / "decoder.onnx"
    transformer.write(source, CONFIG)
    result = optimized(source, tmp_path / "scratch", level, **fixed)
    generator = np.random.default_rng(0)
    again = written(result, tmp_path / "optimized.onnx")
    before, after = optimizing.session(source), optimizing.session(again)
    assert [(i.name, i.type) for i in after.get_inputs()] == [
        (i.name, i.type) for i in before.get_inputs()
    ]
    feeds: dict[str, optimizing.Array] = {}
    for each in before.get_inputs():
        shape = [SIZES.get(dim, dim) for dim in each.shape]
        whole = generator.integers(0, 2 if each.name == "past_mask" else 97, shape)
        feeds[each.name] = whole if "int64" in each.type else generator.random(shape, np.float32)
    optimizing.assert_same_bits(after.run(None, feeds), before.run(None, feeds))
    if fixed:
        assert not set(optimizing.ops(result)) & {"Shape", "Range", "ConstantOfShape", "Squeeze"}
        assert all(
            value.shape is not None and value.shape.is_static()
            for node in result.model.graph
            for value in node.outputs
        )
        reshapes = [node for node in result.model.graph if node.op_type in ("Reshape", "Expand")]
        assert reshapes
        assert all(
            node.inputs[1] in set(result.model.graph.initializers.values()) for node in reshapes
        )


FLOAT16 = {
    "test_attention_4d_causal_fp16_expanded",
    "test_attention_4d_fp16_expanded",
    "test_attention_4d_gqa_with_past_and_present_fp16_expanded",
}
"""Of which onnxruntime leaves out roundings between float16 nodes, other ones when less is run
(test_kernels.test_onnxruntime_leaves_out_roundings_between_float16_nodes)."""


PARTS = 8


@pytest.mark.wide(8)
@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(
    ("constant", "level", "least"),
    [
        # What a build of basic computes is compared by test_backend_nodes.
        pytest.param(False, "basic", 140, id="inputs fed", marks=pytest.mark.soak),
        pytest.param(True, "extended", 150, id="inputs constant"),
    ],
)
def test_onnx_node_tests_compute_the_same(
    constant: bool,
    level: str,
    least: int,
    part: int,
    tmp_path: Path,
    onnx_node_tests: Sequence[TestCase],
) -> None:
    """Every model of onnx's backend tests that ONNX Runtime runs, the same each time.

    With its inputs as initializers, whatever can be folded is: then kernels are compared with
    those of ONNX Runtime.
    """
    compared, different = 0, []
    for index, case in enumerate(onnx_node_tests):
        if not case.data_sets or zlib.crc32(case.name.encode()) % PARTS != part:
            continue
        model, feeds = feedable(case, constant)
        before = reference(model, feeds)
        if before is None:
            continue
        path = tmp_path / "model.onnx"
        path.write_bytes(model.SerializeToString())
        folder = tmp_path / str(index)
        folder.mkdir()
        try:
            result = optimize.run(
                load.run(ModelSource(name="m", path=path)), settings(level), folder
            )
            after = optimizing.run(canonical.serialize(result.model), feeds)
            optimizing.assert_same_bits(after, before)
        except (AssertionError, EpctxError, RuntimeError) as error:
            different.append(f"{case.name}: {type(error).__name__} {str(error)[:200]}")
        compared += 1
    known = FLOAT16 if level == "extended" else set()
    assert {line.partition(":")[0] for line in different} <= known, "\n".join(different)
    assert compared >= least


def feedable(case: TestCase, constant: bool) -> tuple[onnx.ModelProto, dict[str, optimizing.Array]]:
    """The case's model and its first inputs; `constant`: tensors among them as initializers."""
    model = onnx.ModelProto()
    model.CopyFrom(case.model)
    assert case.data_sets
    given = zip(list(model.graph.input), case.data_sets[0][0], strict=False)
    feeds: dict[str, optimizing.Array] = {}
    for value, content in given:
        tensor = as_tensor(value, content) if constant else None
        if tensor is None:
            if isinstance(content, onnx.TensorProto):
                content = numpy_helper.to_array(content)
            feeds[value.name] = content
        else:
            model.graph.initializer.append(tensor)
            model.graph.input.remove(value)
            model.ir_version = max(model.ir_version, 8)
    return model, feeds


def as_tensor(value: onnx.ValueInfoProto, content: object) -> onnx.TensorProto | None:
    if isinstance(content, onnx.TensorProto):
        tensor = content
    elif isinstance(content, np.ndarray | np.generic):
        tensor = numpy_helper.from_array(np.asarray(content))
    else:
        return None
    if tensor.data_type != value.type.tensor_type.elem_type:
        return None
    tensor.name = value.name
    return tensor


def reference(model: onnx.ModelProto, feeds: optimizing.Feeds) -> list[object] | None:
    """What ONNX Runtime computes; None where it cannot, or not the same twice."""
    try:
        run = optimizing.session(model.SerializeToString())
        first, second = (run.run(None, feeds) for _ in range(2))
        optimizing.assert_same_bits(first, second)
    except Exception:
        return None
    return list(first)


STREAM = """
import json, sys, threading, time
from pathlib import Path
from epctx.manifest import ModelSource, OptimizeSettings
from epctx.stages import load, optimize

def anonymous():
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))

peak, done = 0, threading.Event()
def watch():
    global peak
    while not done.is_set():
        peak = max(peak, anonymous())
        time.sleep(0.002)

loaded = load.run(ModelSource(name="m", path=Path(sys.argv[1])))
before = anonymous()
threading.Thread(target=watch, daemon=True).start()
result = optimize.run(loaded, OptimizeSettings(level="extended"), Path(sys.argv[2]))
done.set()
print(json.dumps({
    "grown": max(peak, anonymous()) - before,
    "digest": str(result.digest),
    "ops": sorted({node.op_type for node in result.model.graph}),
}))
"""

MEGABYTES = 300
ROWS, COLUMNS = MEGABYTES * 256, 1024
LARGE = {
    "a fill": "w = ConstantOfShape <value = float[1] {0.5}> (shape)",
    "an expansion, turned": "e = Expand(row, shape) w = Transpose(e)",
    "a cast": "h = ConstantOfShape <value = float16[1] {14336}> (shape) w = Cast<to = 1>(h)",
    "casts and sums of what is no fill": (
        "a = Cast<to = 1>(numbers) b = Transpose(a) w = Add(b, column)"
    ),
    "joined, cut and reshaped": (
        "a = Cast<to = 1>(numbers) b, c = Split<axis = 1, num_outputs = 2>(a)"
        " d = Concat<axis = 1>(c, b) e = Transpose(d) w = Reshape(e, flat)"
    ),
    "picked": "a = Cast<to = 1>(numbers) t = Transpose(a) w = Gather(t, picks)",
}


@pytest.mark.needs("Linux", "reads /proc/self/status")
@pytest.mark.wide(2)
@pytest.mark.parametrize("body", LARGE.values(), ids=LARGE.keys())
def test_large_folds_are_streamed(body: str, tmp_path: Path) -> None:
    """300 MB of weights are made in less than 110 MB, which the import of a module or two takes."""
    model = onnx_text.proto(
        f"g (float x) => (float y) {{ {body} r = ReduceMax<keepdims = 0>(w) y = Add(x, r) }}"
    )
    numbers = np.arange(ROWS * COLUMNS, dtype=np.int8).reshape(ROWS, COLUMNS)
    constants = {
        "shape": np.array([ROWS, COLUMNS]),
        "row": np.arange(COLUMNS, dtype=np.float32),
        "column": np.arange(ROWS, dtype=np.float32),
        "flat": np.array([-1]),
        "picks": np.arange(COLUMNS)[::-1].copy(),
        "numbers": numbers,
    }
    for name, array in constants.items():
        if name in body:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    path, folder = tmp_path / "model.onnx", tmp_path / "scratch"
    onnx.save(model, path)
    folder.mkdir()
    command = [sys.executable, "-c", STREAM, str(path), str(folder)]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert printed.returncode == 0, printed.stderr
    found = json.loads(printed.stdout)
    assert found["ops"] == ["Add", "ReduceMax"]
    sizes = [file.stat().st_size for file in folder.iterdir()]
    assert sum(sizes) == MEGABYTES << 20, "what was made on the way is gone"
    assert found["grown"] < 110 << 20
    discard(tmp_path)
