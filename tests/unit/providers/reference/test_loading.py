"""Loading EPContext nodes of the reference EP, and running them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import InvalidGraph
from epctx.files.digest import of_bytes
from epctx.graph.epcontext import EPContextNode, read_all
from epctx.graph.weights.data_file import DataFile
from epctx.providers.base import Kernel
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.providers.reference.layout import Meta, Notes
from epctx.providers.reference.workspace import ContextWriter, Graph, Weight
from tests.kit import onnx_text, passing
from tests.kit.building import assert_close, build, cpu, mlp, normal, reference

Nodes = tuple[EPContextNode, ...]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sharing group whose models have two partitions each."""
    ep = reference(exclude_ops=("Tanh",))
    models = {"a": mlp(batch=1, layers=1), "b": mlp(batch=2, layers=2)}
    return build(tmp_path_factory.mktemp("loading"), models, providers=[ep])


def nodes_of(folder: Path, name: str) -> Nodes:
    return read_all(onnx.load(folder / f"{name}_ctx.onnx"))


def load(nodes: Sequence[EPContextNode], folder: Path | None, **options: str) -> Sequence[Kernel]:
    return ReferenceExecutionProvider(options).load(nodes, folder, None)


def changed(node: EPContextNode, **fields: Any) -> EPContextNode:
    return replace(node, **fields)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"source": "other"}, "source is 'other'"),
        ({"ep_sdk_version": "1.0.1"}, "ep_sdk_version is '1.0.1'"),
        ({"hardware_architecture": "v1"}, "hardware_architecture is 'v1'"),
        ({"onnx_model_filename": "b.onnx"}, "onnx_model_filename is 'b.onnx'"),
        ({"max_size": 64 * 64 * 4 - 1}, "max_size is 16383 bytes"),
        ({"partition_name": "a_reference_9"}, "its graph 'a_reference_9' is not in"),
        ({"partition_name": None}, "its graph None is not in"),
        ({"partition_name": "b_reference_0"}, "has another graph 'b_reference_0'"),
        ({"notes": None}, "notes do not say"),
        ({"notes": "{}"}, "notes do not say"),
        ({"notes": Notes(graph="blake3:00", notes="").text}, "has another graph"),
        ({"ep_cache_context": None}, "has no ep_cache_context"),
        ({"ep_cache_context": b""}, "has no ep_cache_context"),
        ({"ep_cache_context": b"\xff"}, "not UTF-8"),
        ({"inputs": ("x", "x2")}, "has 1 inputs and 1 outputs, but its node has 2 and 1"),
        ({"outputs": ()}, "its node has 1 and 0"),
        ({"main_context": 0}, "main_context = 0"),
    ],
)
def test_a_node_that_does_not_fit_its_context_is_refused(
    folder: Path, fields: dict[str, object], message: str
) -> None:
    (node,) = nodes_of(folder, "a")
    assert load([node], folder)
    with pytest.raises(InvalidGraph, match=message):
        load([changed(node, **fields)], folder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sdk_version": "0.9"}, "another major version"),
        ({"sdk_version": "2.0"}, "another major version"),
        ({"driver_version": "0.9.9"}, "needs driver 1.0.0, this host has 0.9.9"),
        ({"hardware_architecture": "v75"}, "'generic', this host is 'v75'"),
    ],
)
def test_a_host_of_other_versions_refuses(
    folder: Path, options: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidGraph, match=message):
        load(nodes_of(folder, "a"), folder, **options)


def test_a_newer_sdk_and_driver_load(folder: Path) -> None:
    assert load(nodes_of(folder, "a"), folder, sdk_version="1.7", driver_version="22.0")


def test_absent_optional_attributes_agree(folder: Path) -> None:
    (node,) = nodes_of(folder, "a")
    bare = changed(
        node,
        ep_sdk_version=None,
        hardware_architecture=None,
        onnx_model_filename=None,
        max_size=0,
        name="renamed",
    )
    assert load([bare], folder)


def test_a_secondary_node_finds_its_graph_in_another_nodes_context(tmp_path: Path) -> None:
    source = mlp(layers=2)
    out = build(tmp_path, {"m": source}, providers=[reference(exclude_ops=("Relu",))])
    nodes = nodes_of(out, "m")
    assert [node.main_context for node in nodes] == [1, 0, 0]
    for order in (nodes, nodes[::-1]):  # the primary node may come last
        assert len(load(order, out)) == 3
    with pytest.raises(InvalidGraph, match="it has no context of its own"):
        load(nodes[1:], out)


def test_several_primary_nodes_of_several_binaries(tmp_path: Path) -> None:
    first = build(tmp_path / "1", {"one": mlp(seed=1)})
    second = build(tmp_path / "2", {"two": mlp(seed=2)}, embed_mode=1)
    nodes = (*nodes_of(first, "one"), *nodes_of(second, "two"))
    kernels = load(nodes, first)
    x = normal((1, 64))
    for kernel, seed in zip(kernels, (1, 2), strict=True):
        (y,) = kernel.compute([ort.OrtValue.ortvalue_from_numpy(x)])
        assert_close([y.numpy()], cpu(mlp(seed=seed)).run(None, {"x": x}))


def test_a_binary_is_read_once_for_all_nodes_of_a_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = build(tmp_path, {"m": mlp(layers=3)}, providers=[reference(exclude_ops=("Relu",))])
    nodes = [
        changed(n, main_context=1, ep_cache_context=b"m_reference.bin") for n in nodes_of(out, "m")
    ]
    opened: list[Path] = []
    whole = DataFile.view

    def noted(self: DataFile, *args: int) -> memoryview:
        opened.append(self.path)
        return whole(self, *args)

    monkeypatch.setattr(DataFile, "view", noted)
    load(nodes, out)
    assert len(opened) == 1


def test_a_file_exchanged_while_it_is_loaded_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DataFile, "changed", lambda self: True)
    with pytest.raises(InvalidGraph, match="was replaced or changed"):
        load(nodes_of(folder, "a"), folder)


# --- binaries that are whole, and hold what this EP would not write


def crafted(folder: Path, model: onnx.ModelProto, *weights: bytes, **fields: Any) -> Nodes:
    """Write a sound binary around a graph; the node that fits it."""
    graph = Graph(
        name="g",
        model="m.onnx",
        proto=model.SerializeToString(),
        weights=tuple(
            Weight(digest=of_bytes(w), length=len(w), chunks=lambda w=w: iter((w,)))  # type: ignore[misc]
            for w in weights
        ),
    )
    meta = Meta(
        sdk_version="1.0.0",
        driver_version="1.0.0",
        hardware_architecture="generic",
        source="reference",
    )
    writer = ContextWriter(meta=meta, graphs=[graph])
    (folder / "c.bin").write_bytes(b"".join(writer.chunks()))
    node = EPContextNode(
        name="g",
        inputs=("x",),
        outputs=("y",),
        ep_cache_context=b"c.bin",
        embed_mode=0,
        partition_name="g",
        source="reference",
        notes=Notes(graph=str(graph.digest), notes="").text,
    )
    return (changed(node, **fields),)


WEIGHT = np.ones((32, 32), np.float32).tobytes()


def add(tensor: onnx.TensorProto) -> onnx.ModelProto:
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [info("x", TensorProto.FLOAT, [32, 32])],
        [info("y", TensorProto.FLOAT, [32, 32])],
        [tensor],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def external(dims: Sequence[int], kind: int = TensorProto.FLOAT, **keys: str) -> onnx.TensorProto:
    tensor = onnx.TensorProto(
        name="w", dims=dims, data_type=kind, data_location=TensorProto.EXTERNAL
    )
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


REFERENCE = str(of_bytes(WEIGHT))


def test_a_crafted_binary_that_is_right_runs(tmp_path: Path) -> None:
    nodes = crafted(tmp_path, add(external([32, 32], location=REFERENCE)), WEIGHT)
    (kernel,) = load(nodes, tmp_path)
    (y,) = kernel.compute([ort.OrtValue.ortvalue_from_numpy(np.ones((32, 32), np.float32))])
    assert (y.numpy() == 2).all()


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (external([32, 32], location="c.bin"), "not in the table"),
        (external([32, 32], location="/etc/passwd"), "not in the table"),
        (external([32, 32]), "not in the table"),
        (external([32, 32], location=REFERENCE, offset="8"), "not in the table"),
        (external([32, 32], location="blake3:" + "0" * 64), "not in the table"),
        (external([32, 31], location=REFERENCE), "not in the table"),
        (external([64, 32], location=REFERENCE), "not in the table"),
        (external([-32, -32], location=REFERENCE), "negative dimension"),
        (external([32, 32], kind=TensorProto.STRING, location=REFERENCE), "strings"),
        (external([32, 32], kind=99, location=REFERENCE), "data type 99"),
    ],
)
def test_a_reference_to_anything_but_the_table_is_refused(
    tmp_path: Path, tensor: onnx.TensorProto, message: str
) -> None:
    nodes = crafted(tmp_path, add(tensor), WEIGHT)
    with pytest.raises(InvalidGraph, match=message):
        load(nodes, tmp_path)


def test_a_tensor_in_a_node_that_refers_to_a_file_is_refused(tmp_path: Path) -> None:
    model = add(external([32, 32], location=REFERENCE))
    secret = external([32, 32], location="secret.data")
    model.graph.node.append(helper.make_node("Constant", [], ["c"], value=secret))
    nodes = crafted(tmp_path, model, WEIGHT)
    with pytest.raises(InvalidGraph, match="refers to a file"):
        load(nodes, tmp_path)


def test_weights_that_the_table_of_graphs_does_not_count_are_refused(tmp_path: Path) -> None:
    model = add(external([32, 32], location=REFERENCE))
    nodes = crafted(tmp_path, model, WEIGHT, b"x" * 4096)
    with pytest.raises(InvalidGraph, match="weights as its table entry says"):
        load(nodes, tmp_path)


def test_a_graph_that_is_no_model_or_that_onnxruntime_refuses_is_refused(tmp_path: Path) -> None:
    model = add(external([32, 32], location=REFERENCE))
    model.graph.node[0].op_type = "NoSuchOp"
    with pytest.raises(InvalidGraph, match="refused by ONNX Runtime"):
        load(crafted(tmp_path, model, WEIGHT), tmp_path)

    class Broken:
        graph = model.graph

        def SerializeToString(self) -> bytes:
            return b"\xff\xff\xff"

    with pytest.raises(InvalidGraph, match="not an ONNX model"):
        load(crafted(tmp_path, Broken()), tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "bits", "opset"),
    [
        (TensorProto.INT4, 4, 21),
        (TensorProto.UINT4, 4, 21),
        (TensorProto.INT8, 8, 21),
        (TensorProto.UINT8, 8, 21),
        (TensorProto.INT16, 16, 21),
        (TensorProto.FLOAT8E4M3FN, 8, 21),
    ],
)
def test_quantized_weights_are_read_from_the_map(
    tmp_path: Path, kind: int, bits: int, opset: int
) -> None:
    raw = np.random.default_rng(0).bytes(32 * 33 * bits // 8)
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        [
            helper.make_node("DequantizeLinear", ["w", "s"], ["d"]),
            helper.make_node("Add", ["x", "d"], ["y"]),
        ],
        "g",
        [info("x", TensorProto.FLOAT, [32, 33])],
        [info("y", TensorProto.FLOAT, [32, 33])],
        [
            helper.make_tensor("w", kind, [32, 33], raw, raw=True),
            helper.make_tensor("s", TensorProto.FLOAT, [], [0.5]),
        ],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = normal((32, 33))
    wanted = cpu(model).run(None, {"x": x})
    del model.graph.initializer[:]
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [0.5])
    model.graph.initializer.extend([external([32, 33], kind, location=str(of_bytes(raw))), scale])
    (kernel,) = load(crafted(tmp_path, model, raw), tmp_path)
    (y,) = kernel.compute([ort.OrtValue.ortvalue_from_numpy(x)])
    np.testing.assert_array_equal(y.numpy(), wanted[0])


TURNED = """g (float[1, 16, 4, 16] x) => (float[1, 16, 4, 16] y) {
    turned = Transpose <perm = [0, 2, 1, 3]> (x)
    rotated = Mul (turned, w)
    shifted = Add (rotated, turned)
    y = Transpose <perm = [0, 2, 1, 3]> (shifted)
}"""


def test_a_weight_between_transposes_is_what_the_model_says(tmp_path: Path) -> None:
    model = onnx_text.proto(TURNED)
    weight = np.arange(256, dtype=np.float32).reshape(1, 1, 16, 16) / 256
    model.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    feeds = {"x": normal((1, 16, 4, 16))}
    wanted = passing.stock(path, feeds)
    assert_close(passing.through(path, tmp_path, feeds, "basic"), wanted)
