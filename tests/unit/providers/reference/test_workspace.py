"""Compiling with the reference EP: nodes, names, and weights that are stored once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import CompileError
from epctx.graph.epcontext import EPContextNode, read_all
from epctx.manifest import Tolerance
from epctx.providers.base import SessionGroupSpec
from epctx.providers.reference import ReferenceExecutionProvider, reader, workspace
from epctx.providers.reference.layout import Notes
from epctx.providers.reference.workspace import lower
from tests.kit.building import build, mlp, model_of, partitioned, reference

OPTIONS = {
    "source": "npu0",
    "hardware_architecture": "v75",
    "sdk_version": "2.1",
    "driver_version": "30.1",
    "notes": "for the demo",
}


def nodes_of(path: Path) -> tuple[EPContextNode, ...]:
    return read_all(onnx.load(path))


def test_every_attribute_of_the_op_is_written(tmp_path: Path) -> None:
    ep = reference(**OPTIONS, exclude_ops=("Relu",))
    out = build(tmp_path, {"m": mlp(layers=2)}, providers=[ep], prefix="pre_")
    first, second, third = nodes_of(out / "m_ctx.onnx")
    context = reader.open_file(out, "m_npu0.bin", where="test")
    graph = context.graphs["pre_m_npu0_0"]
    assert first == EPContextNode(
        name="pre_m_npu0_0",
        inputs=("x",),
        outputs=("a0",),
        main_context=1,
        ep_cache_context=b"m_npu0.bin",
        embed_mode=0,
        ep_sdk_version="2.1",
        onnx_model_filename="m.onnx",
        hardware_architecture="v75",
        partition_name="pre_m_npu0_0",
        source="npu0",
        notes=Notes(graph=str(graph.digest), notes="for the demo").text,
        max_size=64 * 64 * 4,
    )
    assert (second.name, third.name) == ("pre_m_npu0_1", "pre_m_npu0_2")
    assert (second.main_context, second.ep_cache_context) == (0, None)


def test_max_size_is_the_weights_of_the_models_largest_graph(tmp_path: Path) -> None:
    out = build(
        tmp_path,
        {"a": mlp(width=32), "b": mlp(width=64)},
        providers=[reference(exclude_ops=("Add",))],
    )
    sizes = {name: {n.max_size for n in nodes_of(out / f"{name}_ctx.onnx")} for name in "ab"}
    assert sizes == {"a": {32 * 32 * 4}, "b": {64 * 64 * 4}}


def test_a_sharing_group_stores_shared_weights_once(tmp_path: Path) -> None:
    models = {f"m{batch}": mlp(batch=batch, width=256) for batch in (1, 2, 8)}
    shared = build(tmp_path / "shared", models) / "m1_reference.bin"
    alone = [
        build(tmp_path / name, {name: model}) / f"{name}_reference.bin"
        for name, model in models.items()
    ]
    largest = max(path.stat().st_size for path in alone)
    assert shared.stat().st_size <= 1.05 * largest


def group(folder: Path, *models: str, embed: bool = False) -> SessionGroupSpec:
    return SessionGroupSpec(
        models=models,
        embed_mode=1 if embed else 0,
        node_name_prefix="",
        session_options={},
        folder=folder,
    )


def test_a_shared_context_cannot_be_embedded(tmp_path: Path) -> None:
    ep = reference()
    part = partitioned("a", mlp(), [ep], tmp_path)
    space = ep.open_workspace(group(tmp_path, "a", "b", embed=True))
    with pytest.raises(CompileError, match="embedded context cannot be shared"):
        space.compile(part, part.partitions)


def test_a_payload_beyond_what_protobuf_holds_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "LARGEST_PAYLOAD", 10_000)
    ep = reference()
    part = partitioned("a", mlp(), [ep], tmp_path)
    space = ep.open_workspace(group(tmp_path, "a", embed=True))
    with pytest.raises(CompileError, match="2 GB") as raised:
        space.compile(part, part.partitions)
    assert "embed_mode: 0" in raised.value.remedy


def test_weights_are_streamed_from_the_source_file(tmp_path: Path) -> None:
    model = mlp(layers=1, width=256)
    path = tmp_path / "m.onnx"
    onnx.save(model, path, save_as_external_data=True, location="m.data", size_threshold=0)
    ep = reference()
    part = partitioned("m", path, [ep], tmp_path)
    space = ep.open_workspace(group(tmp_path, "m"))
    space.compile(part, part.partitions)
    (binary,) = space.finish()
    views = [chunk for chunk in binary.chunks() if isinstance(chunk, memoryview)]
    assert sum(map(len, views)) >= 256 * 256 * 4 and all(view.readonly for view in views)


def lowered(graph: onnx.GraphProto) -> tuple[onnx.ModelProto, set[int]]:
    """The graph as it is stored, and the sizes of its weights."""
    found = lower(ir.serde.deserialize_model(model_of(graph)), name="g", model="m.onnx")
    return onnx.ModelProto.FromString(found.proto), {weight.length for weight in found.weights}


def info(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


BIG = np.arange(1024, dtype=np.float32).reshape(32, 32)


def test_weights_of_control_flow_bodies_are_stored_too() -> None:
    def body(name: str, scale: float) -> onnx.GraphProto:
        return helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], [f"{name}_y"])],
            name,
            [],
            [info(f"{name}_y", [1, 32])],
            [numpy_helper.from_array(BIG * np.float32(scale), "w")],
        )

    graph = helper.make_graph(
        [
            helper.make_node(
                "If", ["c"], ["y"], then_branch=body("then", 1), else_branch=body("else", 2)
            )
        ],
        "g",
        [info("x", [1, 32]), info("c", [], TensorProto.BOOL)],
        [info("y", [1, 32])],
    )
    proto, sizes = lowered(graph)
    assert sizes == {4096} and len(proto.graph.initializer) == 2
    assert all(t.data_location == TensorProto.EXTERNAL for t in proto.graph.initializer)
    assert not any(a.g.initializer for a in proto.graph.node[0].attribute)


@pytest.mark.parametrize(
    ("tensor", "stored"),
    [
        (numpy_helper.from_array(np.zeros(255, np.float32), "w"), False),
        (numpy_helper.from_array(np.zeros(256, np.float32), "w"), True),
        (numpy_helper.from_array(np.zeros(8192, np.int64), "w"), False),
        (numpy_helper.from_array(np.zeros(8193, np.int64), "w"), True),
        (numpy_helper.from_array(np.zeros((2, 200), np.int64), "w"), True),
        (numpy_helper.from_array(np.array(["text"] * 500, object), "w"), False),
        (numpy_helper.from_array(np.zeros(500, np.complex64), "w"), False),
        (helper.make_tensor("w", TensorProto.INT4, [4096], bytes(2048), raw=True), True),
        (helper.make_tensor("w", TensorProto.BFLOAT16, [4096], bytes(8192), raw=True), True),
    ],
    ids=lambda case: f"{case.dims}{case.data_type}" if hasattr(case, "dims") else None,
)
def test_what_is_stored_and_what_stays_in_the_graph(tensor: onnx.TensorProto, stored: bool) -> None:
    graph = helper.make_graph(
        [helper.make_node("Shape", ["w"], ["y"])],
        "g",
        [],
        [info("y", [len(tensor.dims)], TensorProto.INT64)],
        [tensor],
    )
    proto, sizes = lowered(graph)
    (found,) = proto.graph.initializer
    assert (found.data_location == TensorProto.EXTERNAL) == stored == bool(sizes)


def test_what_a_binary_holds_is_told(tmp_path: Path) -> None:
    models = {"a": mlp(batch=1), "b": mlp(batch=2)}
    ep = ReferenceExecutionProvider(OPTIONS)
    out = build(tmp_path, models, providers=[ep])
    path = out / "a_npu0.bin"
    info = ep.inspect_binary(path)
    assert ep.recognizes(path.read_bytes()[:4096]) and not ep.recognizes(b"\x08\x0a")
    assert [graph.name for graph in info.graphs] == ["a_npu0_0", "b_npu0_0"]
    assert info.properties["required driver version"] == "30.1"
    assert info.stored == info.graphs[0].weights == info.saved == 3 * 64 * 64 * 4


def test_a_host_that_cannot_load_is_told_from_the_nodes(tmp_path: Path) -> None:
    ep = ReferenceExecutionProvider(OPTIONS)
    out = build(tmp_path, {"a": mlp()}, providers=[ep])
    nodes = nodes_of(out / "a_ctx.onnx")
    assert ep.cannot_load(nodes, out, sharing=False) is None
    other = reference(hardware_architecture="v73", sdk_version="2.1")
    assert "'v75'" in (other.cannot_load(nodes, out, sharing=False) or "")


def test_integers_are_exact_and_floats_as_exact_as_parts_allow() -> None:
    ep = reference()
    assert ep.tolerance("float32", "int64") == Tolerance()
    assert ep.tolerance("float32", "float32") == Tolerance(cosine_min=0.999999, max_rel=5e-5)
