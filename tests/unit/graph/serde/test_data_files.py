"""Writing external data, read back by epctx, by onnx, and by onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ManifestError
from epctx.graph.serde import canonical
from epctx.graph.serde.data_files import PlacedTensor, place, place_shared
from epctx.graph.weights.tensors import MappedTensor
from epctx.manifest import ModelSource
from epctx.stages import load
from tests.kit import onnx_text
from tests.kit.data_files import write

RNG = np.random.default_rng(0)
W = RNG.standard_normal((40, 40)).astype(np.float32)
X = RNG.standard_normal((2, 40)).astype(np.float32)


def _branch(name: str, factor: float) -> onnx.GraphProto:
    weight = numpy_helper.from_array(W * np.float32(factor), f"{name}w")
    constant = numpy_helper.from_array(W + np.float32(factor))
    nodes = [
        helper.make_node("Constant", [], [f"{name}c"], value=constant),
        helper.make_node("MatMul", ["y", f"{name}c"], [f"{name}t"]),
        helper.make_node("MatMul", [f"{name}t", f"{name}w"], [f"{name}o"]),
    ]
    output = helper.make_tensor_value_info(f"{name}o", TensorProto.FLOAT, [2, 40])
    return helper.make_graph(nodes, name, [], [output], [weight])


def _proto() -> onnx.ModelProto:
    """Weights as initializers and constants, of the graph and of branches, one of them twice."""
    nodes = [
        helper.make_node("Constant", [], ["k"], value=numpy_helper.from_array(-W)),
        helper.make_node("MatMul", ["x", "w"], ["a"]),
        helper.make_node("MatMul", ["a", "w/copy"], ["b"]),
        helper.make_node("MatMul", ["b", "k"], ["c"]),
        helper.make_node("Add", ["c", "bias"], ["y"]),
        helper.make_node(
            "If", ["p"], ["z"], then_branch=_branch("t", 2), else_branch=_branch("e", 3)
        ),
        helper.make_node("Identity", ["words"], ["spoken"]),
    ]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, [2, 40]), value("p", TensorProto.BOOL, [])],
        [value("z", TensorProto.FLOAT, [2, 40]), value("spoken", TensorProto.STRING, [2])],
        [
            numpy_helper.from_array(W, "w"),
            numpy_helper.from_array(W.T.copy(), "w/copy"),
            numpy_helper.from_array(W[0], "bias"),
            numpy_helper.from_array(W, "unused"),
            numpy_helper.from_array(np.array(["a", "b"], dtype=object), "words"),
        ],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _load(path: Path) -> ir.Model:
    return load.run(ModelSource(name="m", path=path)).model


def _run(path: Path) -> list[np.ndarray]:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    results = []
    for p in (True, False):
        results += session.run(None, {"x": X, "p": np.array(p)})
    return results


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.onnx"
    onnx.save(_proto(), path)
    return path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "m.onnx"


def _external(proto: onnx.ModelProto) -> dict[str, dict[str, str]]:
    return {
        tensor.name: {entry.key: entry.value for entry in tensor.external_data}
        for tensor in proto.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
    }


@pytest.mark.parametrize("location", ["w.data", "sub/w.data"])
@pytest.mark.parametrize("size_threshold", [0, 1024])
def test_what_is_written_is_read_by_everybody(
    source: Path, out: Path, location: str, size_threshold: int
) -> None:
    model = _load(source)
    digest = canonical.digest(model)

    write(model, out, location, size_threshold=size_threshold)

    assert {path for path in out.parent.rglob("*") if path.is_file()} == {
        out,
        out.parent / location,
    }
    onnx.checker.check_model(out)
    onnx.load(out)
    for one, other in zip(_run(source), _run(out), strict=True):
        np.testing.assert_array_equal(one, other)
    assert canonical.digest(_load(out)) == digest
    assert canonical.is_canonical(out)


def test_offsets_are_aligned_and_keys_are_those_of_the_specification(
    source: Path, out: Path
) -> None:
    data, _ = write(_load(source), out, "w.data", size_threshold=0)
    external = _external(onnx.load(out, load_external_data=False))
    assert external.keys() == {"w", "w/copy", "bias"}
    for keys in external.values():
        assert keys.keys() == {"location", "offset", "length"}
        assert keys["location"] == "w.data"
        assert int(keys["offset"]) % 4096 == 0
    bias = external["bias"]
    content = (out.parent / "w.data").read_bytes()
    assert content[int(bias["offset"]) :][: int(bias["length"])] == W[0].tobytes()
    assert data.size == len(content)


def test_the_threshold_is_in_bytes(source: Path, out: Path) -> None:
    write(_load(source), out, "w.data", size_threshold=W.nbytes)
    proto = onnx.load(out, load_external_data=False)
    assert _external(proto).keys() == {"w", "w/copy"}
    out.unlink()
    (out.parent / "w.data").unlink()
    (only,) = write(_load(source), out, "w.data", size_threshold=W.nbytes + 1)
    assert only.name == "m.onnx"


def test_a_content_that_two_values_share_is_stored_once(out: Path) -> None:
    model = onnx_text.model(
        "g (float[2] x) => (float[2] z) { y = Add(x, a) z = Add(y, b) }", infer=False
    )
    tensor = ir.tensor(np.array([1, 2], np.float32))
    for node in model.graph:
        weight = node.inputs[1]
        assert weight is not None
        weight.const_value = tensor
        weight.type, weight.shape = ir.TensorType(tensor.dtype), ir.Shape([2])
        model.graph.initializers.add(weight)
    data, _ = write(model, out, "w.data", size_threshold=0)
    assert data.size == 8
    onnx.checker.check_model(out)


def test_ranges_of_one_file_that_are_the_same_are_stored_once(source: Path, out: Path) -> None:
    write(_load(source), out, "w.data")
    proto = onnx.load(out, load_external_data=False)
    for tensor in proto.graph.initializer:
        if tensor.name == "w/copy":
            tensor.external_data[1].value = _external(proto)["w"]["offset"]
    onnx.save(proto, out)
    again = out.with_name("again.onnx")
    data, _ = write(_load(out), again, "again.data")
    assert data.size < 4 * 2 * W.nbytes
    offsets = _external(onnx.load(again, load_external_data=False))
    assert offsets["w"]["offset"] == offsets["w/copy"]["offset"]


def test_placed_tensors_still_have_their_content(source: Path) -> None:
    model = _load(source)
    file = place(model, "w.data")
    assert file is not None
    tensor = model.graph.initializers["w"].const_value
    assert isinstance(tensor, PlacedTensor)
    assert isinstance(tensor.content, MappedTensor)
    np.testing.assert_array_equal(tensor.numpy(), W)
    np.testing.assert_array_equal(np.asarray(tensor), W)
    assert tensor.tobytes() == W.tobytes()
    content = b"".join(file.chunks())
    assert len(content) == file.size
    assert content == b"".join(file.chunks())
    assert content[tensor.offset :][: tensor.length] == W.tobytes()


@pytest.mark.parametrize("location", ["", "../w.data", "/w.data", "a\\b", "C:w", "a/../../b"])
def test_a_location_is_inside_the_folder(source: Path, out: Path, location: str) -> None:
    with pytest.raises(ManifestError, match="file of external initializers"):
        write(_load(source), out, location)
    assert list(out.parent.iterdir()) == []


def _dense(*weights: np.ndarray) -> ir.Model:
    """A MatMul of each weight, one after the other; names tell nothing of what they hold."""
    names = [f"{id(weights)}_{number}" for number in range(len(weights))]
    nodes = [
        helper.make_node("MatMul", ["x" if not n else f"y{n - 1}", name], [f"y{n}"])
        for n, name in enumerate(names)
    ]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 40])
        for name in ("x", f"y{len(names) - 1}")
    ]
    tensors = [numpy_helper.from_array(w, n) for w, n in zip(weights, names, strict=True)]
    graph = helper.make_graph(nodes, "dense", ends[:1], ends[1:], tensors)
    opset = [helper.make_opsetid("", 21)]
    return ir.from_proto(helper.make_model(graph, opset_imports=opset, ir_version=10))


def test_what_models_have_in_common_is_there_once(tmp_path: Path) -> None:
    """Each model loads alone in onnxruntime, and gives what it gave."""
    contents = ((W, -W), (W + 1, W, W.copy()), (W * 2, -W))
    models = [_dense(*each) for each in contents]
    file = place_shared(models, "shared.data")
    assert file is not None and file.size == 2 * 8192 - (8192 - W.nbytes)
    (tmp_path / file.location).write_bytes(b"".join(file.chunks()))
    for model, weights in zip(models, contents, strict=True):
        path = tmp_path / "m.onnx"
        path.write_bytes(b"".join(canonical.chunks(model)))
        outside = [
            tensor.name
            for tensor in onnx.load(path, load_external_data=False).graph.initializer
            if tensor.data_location == TensorProto.EXTERNAL
        ]
        assert len(outside) == sum(1 for w in weights if np.array_equal(abs(w), abs(W)))
        (found,) = ort.InferenceSession(path).run(None, {"x": X})
        np.testing.assert_allclose(found, np.linalg.multi_dot([X, *weights]), rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    "weights",
    [
        [(W,)],
        [(W, W), (W + 1,)],
        [(W[:, :1] * np.ones((1, 25), np.float32),)] * 2,
    ],
    ids=["one model", "twice in one", "under a page"],
)
def test_what_only_one_has_and_what_is_small_stays(weights: list[tuple[np.ndarray, ...]]) -> None:
    assert place_shared([_dense(*each) for each in weights], "shared.data") is None
