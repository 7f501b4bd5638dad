"""Outline of a model, and where its nodes are in the source."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper

from epctx.errors import ModelError
from epctx.graph.partition import outline
from epctx.graph.partition.outline import Outlined
from epctx.manifest import PartitionSettings
from epctx.stages import partition
from tests.kit import onnx_text
from tests.kit.building import mlp, model_of, partitioned, reference


def test_every_node_is_there_with_its_owner_and_what_it_needs(tmp_path: Path) -> None:
    settings = PartitionSettings(exclude_nodes=("relu0",))
    model = partitioned("m", mlp(layers=2), [reference()], tmp_path, settings)
    outline = Outlined(model.model, partition.name_of).owned(model.partitions)
    assert outline.names == ("mm0", "add0", "relu0", "mm1", "add1", "relu1", "tail")
    assert outline.op_types == ("MatMul", "Add", "Relu", "Tanh")
    assert outline.ops == (0, 1, 2, 0, 1, 2, 3)
    assert outline.predecessors == ((), (0,), (1,), (2,), (3,), (4,), (5,))
    assert outline.owners == (0, 0, -1, 1, 1, 1, 1)
    sizes = [outline.owners.count(number) for number in range(len(model.partitions))]
    assert sizes == [len(part.nodes) for part in model.partitions]


@pytest.mark.parametrize(("name", "owners"), [("relu0", (0,)), ("made by the EP", (-1,))])
def test_a_node_that_has_become_another_object_is_known_by_its_name(
    tmp_path: Path, name: str, owners: tuple[int, ...]
) -> None:
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [2]) for n in "xy"]
    node = helper.make_node("Relu", ["x"], ["y"], name="relu0")
    model = model_of(helper.make_graph([node], "g", values[:1], values[1:]))
    made = partitioned("m", model, [reference()], tmp_path)
    outlined = Outlined(made.model, partition.name_of)
    again = replace(made.partitions[0], nodes=(ir.node("Relu", [], name=name),))
    assert outlined.owned([again]).owners == owners


TRACE = (
    'File "/home/me/venv/lib/python3.11/site-packages/transformers/models/bert/modeling_bert.py", '
    "line 1093, in forward\n    outputs = self.bert(\n"
    'File "C:\\env\\Lib\\site-packages\\transformers\\masking.py", line 661, in forward\n    mask ='
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A model whose second node has torch's metadata, and whose third has no name."""
    proto = onnx_text.proto(
        "g (float[2] x) => (float[2] y) { a = Neg(x) [index] b = Abs(a) y = Relu(b) }"
    )
    proto.graph.node[0].name = "/a/Neg"
    scopes = "['', 'model.encoder', 'index']"
    for key, value in {"stack_trace": TRACE, "name_scopes": scopes}.items():
        proto.graph.node[1].metadata_props.add(key=f"pkg.torch.onnx.{key}", value=value)
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def test_a_node_has_its_place_and_what_the_exporter_says(source: Path) -> None:
    found = outline.node_locations(source, {"/a/Neg", "index", "-> y", "gone"})
    assert found["/a/Neg"] == "node 0" and found["-> y"] == "node 2"
    assert found["index"].startswith("node 1, model.encoder/index, ")
    assert found["index"].endswith("masking.py:661") and "env" not in found["index"]
    assert "gone" not in found


def test_what_a_pass_made_of_a_node_is_where_that_was(source: Path) -> None:
    found = outline.node_locations(source, {"index/Gather", "/a/Neg/Reshape", "/b/Neg"})
    assert set(found) == {"index/Gather", "/a/Neg/Reshape"}
    assert found["/a/Neg/Reshape"] == "node 0"


def test_no_model_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    with pytest.raises(ModelError):
        outline.node_locations(tmp_path / "m.onnx", {"x"})
