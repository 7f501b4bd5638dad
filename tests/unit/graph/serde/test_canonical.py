from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import CompileError, EpctxError
from epctx.graph.epcontext import Payload
from epctx.graph.serde import canonical, wire
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.tensors import MappedTensor
from tests.kit import onnx_text

MLP = (
    "g (float[2, 4] x) => (float[2, 4] z) "
    "<float[4] b = {1, 2, 3, 4}, float[4] a = {5, 6, 7, 8}> "
    "{ [one] y = Add(x, b) [two] z = Gemm<transB = 1, alpha = 2.0, beta = 0.0>(y, k, a) "
    "[k] k = ConstantOfShape<value: tensor = float[1] {1}>(s) "
    "[s] s = Constant<value_ints = [4, 4]>() }"
)


def _model(body: str = MLP, opsets: str = '"":17, "unused":3') -> ir.Model:
    return onnx_text.model(body, opsets=opsets, infer=False)


def _proto(model: ir.Model) -> onnx.ModelProto:
    data = canonical.serialize(model)
    proto: onnx.ModelProto = onnx.ModelProto.FromString(data)
    assert proto.SerializeToString(deterministic=True) == data  # as protobuf itself writes it
    return proto


def _large(values: np.ndarray, name: str = "w") -> ir.Model:
    """A model of one large weight, in memory."""
    tensor = ir.tensor(values, name=name)
    value = ir.Value(name=name, const_value=tensor)
    value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(values.shape)
    node = ir.Node("", "Identity", [value], outputs=[ir.Value(name="y", type=value.type)], name="n")
    graph = ir.Graph(
        [], [node.outputs[0]], nodes=[node], initializers=[value], opset_imports={"": 17}, name="g"
    )
    return ir.Model(graph, ir_version=8)


def test_the_form() -> None:
    proto = _proto(_model())
    assert proto.producer_name == "epctx"
    assert not proto.HasField("producer_version")
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", 17)]
    assert proto.ir_version == 8
    assert [node.name for node in proto.graph.node] == ["one", "s", "k", "two"]
    assert [a.name for a in proto.graph.node[3].attribute] == ["alpha", "beta", "transB"]
    assert [each.name for each in proto.graph.initializer] == ["a", "b"]
    assert all(each.HasField("raw_data") for each in proto.graph.initializer)
    assert proto.graph.node[2].attribute[0].t.raw_data == np.float32(1).tobytes()


def test_names_of_tensors_in_attributes_are_not_written() -> None:
    proto = _proto(_model())
    assert not proto.graph.node[2].attribute[0].t.HasField("name")


def test_what_says_nothing_of_the_graph_is_left_out() -> None:
    model = _model()
    plain = canonical.serialize(model)
    model.doc_string = model.graph.doc_string = "documentation"
    model.producer_name, model.producer_version = "torch", "9.9"
    model.graph.metadata_props["path"] = "/home/me"
    for node in model.graph:
        node.doc_string = "at /home/me/model.py:3"
        node.metadata_props["pkg.torch.onnx.stack_trace"] = "/home/me/model.py"
        for attribute in node.attributes.values():
            attribute.doc_string = "doc"
        for value in node.outputs:
            value.doc_string = "doc"
            value.metadata_props["k"] = "v"
    for value in model.graph.initializers.values():
        assert value.const_value is not None
        tensor = ir.tensor(value.const_value.numpy(), name=value.name, doc_string="doc")
        tensor.metadata_props["k"] = "v"
        value.const_value = tensor
    assert canonical.serialize(model) == plain
    assert canonical.digest(model) == canonical.digest(_model())


def test_the_models_own_metadata_domain_and_version_are_kept() -> None:
    model = _model()
    plain = canonical.digest(model)
    model.metadata_props["z"], model.metadata_props["a"] = "1", "2"
    model.domain, model.model_version = "org.example", 7
    proto = _proto(model)
    assert [(each.key, each.value) for each in proto.metadata_props] == [("a", "2"), ("z", "1")]
    assert (proto.domain, proto.model_version) == ("org.example", 7)
    assert canonical.digest(model) != plain


def test_unused_initializers_are_left_out_but_inputs_stay() -> None:
    model = _model(
        "g (float[4] x, float[4] d) => (float[4] z, float[4] out) "
        "<float[4] unused = {1, 2, 3, 4}, float[4] d = {1, 1, 1, 1}, float[4] out = {2, 2, 2, 2}, "
        "float[4] deep = {3, 3, 3, 3}, bool c = {1}> "
        "{ z = If(c) <then_branch = t () => (float[4] o) { o = Add(x, deep) }, "
        "else_branch = e () => (float[4] p) { p = Relu(x) }> }"
    )
    proto = _proto(model)
    assert [each.name for each in proto.graph.initializer] == ["c", "d", "deep", "out"]


def test_opset_imports_of_subgraphs_are_in_use() -> None:
    model = _model(
        "g (float[4] x, bool c) => (float[4] z) { z = If(c) "
        "<then_branch = t () => (float[4] o) { o = com.microsoft.Gelu(x) }, "
        "else_branch = e () => (float[4] p) { p = Relu(x) }> }",
        opsets='"unused":3, "com.microsoft":1, "":17',
    )
    imports = [(each.domain, each.version) for each in _proto(model).opset_import]
    assert imports == [("", 17), ("com.microsoft", 1)]


def test_a_model_without_nodes_imports_onnx() -> None:
    proto = _proto(_model("g (float[4] x) => (float[4] x) { }"))
    assert [(each.domain, each.version) for each in proto.opset_import] == [("", 17)]


def test_value_info_is_sorted_and_without_inputs_outputs_and_weights() -> None:
    model = onnx_text.model(MLP, opsets='"":17')
    assert [each.name for each in _proto(model).graph.value_info] == ["k", "s", "y"]


def test_a_value_that_says_no_type_has_no_value_info() -> None:
    model = _model()
    model.graph[0].outputs[0].type = ir.TensorType(ir.DataType.UNDEFINED)
    assert not _proto(model).graph.value_info


def test_types_beyond_tensors_and_denotations_are_kept() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", TensorProto.FLOAT, [2, "N"])
    optional = onnx.ValueInfoProto(name="o")
    optional.type.optional_type.elem_type.sequence_type.elem_type.tensor_type.elem_type = 1
    dense = helper.make_tensor_value_info("d", TensorProto.FLOAT, [2, "N"])
    dense.type.denotation = "IMAGE"
    dense.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph = helper.make_graph([], "g", [sequence, optional, dense], [dense])
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    proto = _proto(ir.serde.deserialize_model(source))
    assert list(proto.graph.input) == [sequence, optional, dense]


def test_types_that_differ_by_a_symbol_alone_are_told_apart() -> None:
    model = onnx_text.model(
        "g (float[N] x, float[M] y, float[?] z, int64[N] w, float[1] v) => (float[N] x) { }"
    )
    symbols = [value.type.tensor_type for value in _proto(model).graph.input]
    assert [str(symbol.shape.dim[0]).strip() for symbol in symbols] == [
        'dim_param: "N"',
        'dim_param: "M"',
        "",
        'dim_param: "N"',
        "dim_value: 1",
    ]
    assert [symbol.elem_type for symbol in symbols] == [1, 1, 1, 7, 1]


def test_quantization_annotations_are_kept_and_sorted() -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["t"]), helper.make_node("Relu", ["t"], ["z"])],
        "g",
        [helper.make_tensor_value_info("x", 1, [1])],
        [helper.make_tensor_value_info("z", 1, [1])],
        [numpy_helper.from_array(np.ones((), np.float32), name) for name in ("s", "p")],
    )
    for tensor in ("z", "x", "t"):
        annotation = graph.quantization_annotation.add(tensor_name=tensor)
        annotation.quant_parameter_tensor_names.add(key="ZERO", value="p")
        annotation.quant_parameter_tensor_names.add(key="SCALE", value="s")
    source = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    written = _proto(ir.serde.deserialize_model(source)).graph
    assert [each.name for each in written.initializer] == ["p", "s"]
    annotations = written.quantization_annotation
    assert [each.tensor_name for each in annotations] == ["t", "x", "z"]
    for each in annotations:
        pairs = [(e.key, e.value) for e in each.quant_parameter_tensor_names]
        assert pairs == [("SCALE", "s"), ("ZERO", "p")]


def test_optional_inputs_and_outputs_that_are_left_out() -> None:
    model = _model(
        "g (float[4] x) => (float[4] z, float[4] m) "
        "{ [clip] z = Clip(x, , x) [d] , m, = mine.Op(x) }",
        opsets='"":17, "mine":1',
    )
    nodes = {node.name: node for node in _proto(model).graph.node}
    assert list(nodes["clip"].input) == ["x", "", "x"]
    assert list(nodes["d"].output) == ["", "m"]


def test_attributes_of_every_type_are_kept() -> None:
    graph = helper.make_graph([], "inner", [], [])
    tensor = numpy_helper.from_array(np.arange(500, dtype=np.float32))
    node = helper.make_node("Op", [], ["y"], domain="mine", name="n")
    values: dict[str, object] = {
        "f": 1.5, "i": -3, "s": "text", "t": tensor, "g": graph, "floats": [1.0, 2.5],
        "ints": [1, -1], "strings": ["a", "ü"], "tensors": [tensor, tensor], "graphs": [graph],
        "tp": helper.make_tensor_type_proto(1, [2]),
    }  # fmt: skip
    node.attribute.extend(helper.make_attribute(key, value) for key, value in values.items())
    node.attribute.append(helper.make_attribute("none", [], attr_type=onnx.AttributeProto.INTS))
    raw = node.attribute.add(name="raw", s=b"\xff\x00", type=onnx.AttributeProto.STRING)
    outer = helper.make_graph([node], "g", [], [helper.make_tensor_value_info("y", 1, [1])])
    source = helper.make_model(outer, opset_imports=[helper.make_opsetid("mine", 1)])
    written = _proto(ir.serde.deserialize_model(source)).graph.node[0].attribute
    assert list(written) == sorted([*node.attribute], key=lambda each: each.name)
    assert raw in written


def test_an_embedded_payload_is_not_copied_through_protobuf() -> None:
    payload = Payload(b"\xff\xfe" * 500_000)
    attribute = ir.Attr("ep_cache_context", ir.AttributeType.STRING, payload)
    output = ir.Value(name="y", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([1]))
    node = ir.Node("com.microsoft", "EPContext", [], [attribute], outputs=[output])
    graph = ir.Graph(
        [], [output], nodes=[node], opset_imports={"com.microsoft": 1, "": 17}, name="g"
    )
    model = ir.Model(graph, ir_version=10)
    assert any(chunk is payload for chunk in canonical.chunks(model))
    proto = _proto(model)
    assert proto.graph.node[0].attribute[0].s == payload
    assert [each.domain for each in proto.opset_import] == ["com.microsoft"]


def test_half_precision_and_small_integers_in_typed_fields() -> None:
    for data_type, stored, raw in (
        (TensorProto.FLOAT16, [0x3C00, 0xC000], np.array([1, -2], np.float16).tobytes()),
        (TensorProto.BFLOAT16, [0x3F80], b"\x80\x3f"),
        (TensorProto.INT8, [-1, 5], b"\xff\x05"),
        (TensorProto.BOOL, [1, 0], b"\x01\x00"),
        (TensorProto.INT4, [0x21, 0x03], b"\x21\x03"),
    ):
        dims = [3] if data_type == TensorProto.INT4 else [len(stored)]
        proto = TensorProto(name="w", data_type=data_type, dims=dims, int32_data=stored)
        model = _large(np.zeros(1, np.float32))
        model.graph.initializers["w"].const_value = ir.serde.deserialize_tensor(proto)
        assert _proto(model).graph.initializer[0].raw_data == raw


def test_references_that_are_not_mapped_are_kept() -> None:
    model = _large(np.zeros(500, np.float32))
    model.graph.initializers["w"].const_value = ir.ExternalTensor(
        "w.bin", 4096, 2000, ir.DataType.FLOAT, shape=ir.Shape([500]), name="w"
    )
    keys = {e.key: e.value for e in _proto(model).graph.initializer[0].external_data}
    assert keys == {"location": "w.bin", "offset": "4096", "length": "2000"}


CHANGES: dict[str, Callable[[ir.Model], object]] = {
    "an operator": lambda m: setattr(m.graph[0], "op_type", "Sub"),
    "a domain": lambda m: setattr(m.graph[0], "domain", "unused"),
    "an attribute": lambda m: m.graph[1].attributes.add(ir.AttrFloat32("alpha", 3.0)),
    "an attribute's type": lambda m: m.graph[1].attributes.add(ir.AttrInt64("alpha", 2)),
    "an edge": lambda m: m.graph[0].replace_input_with(1, m.graph.initializers["a"]),
    "the order of inputs": lambda m: m.graph.inputs.insert(0, ir.Value(name="q")),
    "a name": lambda m: setattr(m.graph.inputs[0], "name", "renamed"),
    "a node's name": lambda m: setattr(m.graph[0], "name", "renamed"),
    "a shape": lambda m: setattr(m.graph.inputs[0], "shape", ir.Shape([3, 4])),
    "a type": lambda m: setattr(m.graph.inputs[0], "type", ir.TensorType(ir.DataType.FLOAT16)),
    "an opset": lambda m: m.graph.opset_imports.update({"": 18}),
    "a small weight": lambda m: setattr(
        m.graph.initializers["a"], "const_value", ir.tensor(np.zeros(4, np.float32))
    ),
    "the type of a weight": lambda m: setattr(
        m.graph.initializers["a"],
        "const_value",
        ir.tensor(np.array([5, 6, 7, 8], np.float32).view(np.int32)),
    ),
    "the shape of a weight": lambda m: setattr(
        m.graph.initializers["a"],
        "const_value",
        ir.tensor(np.array([[5, 6], [7, 8]], np.float32)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_digest_sees_every_change_that_counts(change: Callable[[ir.Model], object]) -> None:
    model = _model()
    before, data = canonical.digest(model), canonical.serialize(model)
    assert canonical.digest(_model()) == before
    change(model)
    assert canonical.digest(model) != before
    assert canonical.serialize(model) != data


def test_the_digest_sees_one_byte_of_a_large_weight() -> None:
    values = np.zeros(10_000, np.float32)
    before = canonical.digest(_large(values))
    values[9_999] = 1e-30
    assert canonical.digest(_large(values)) != before


def test_the_digest_reads_a_mapped_weight_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "w.bin").write_bytes(bytes(40_000))
    file = DataFile.open(tmp_path / "w.bin")
    model = _large(np.zeros(10_000, np.float32))
    model.graph.initializers["w"].const_value = MappedTensor(
        file, 0, ir.DataType.FLOAT, shape=ir.Shape([10_000]), name="w"
    )
    first = canonical.digest(model)
    monkeypatch.setattr(DataFile, "chunks", None)
    assert canonical.digest(model) == first


def test_a_file_beyond_two_gigabytes_is_refused_before_it_is_begun(tmp_path: Path) -> None:
    with (tmp_path / "w.bin").open("wb") as stream:
        stream.truncate(2**31)
    file = DataFile.open(tmp_path / "w.bin")
    model = _large(np.zeros(1, np.float32))
    model.graph.initializers["w"].const_value = MappedTensor(
        file, 0, ir.DataType.UINT8, shape=ir.Shape([2**31]), name="w"
    )
    with pytest.raises(CompileError) as caught:
        canonical.chunks(model)
    message = str(caught.value)
    assert "`embed_mode: 0`" in message
    assert "`external_initializers`" in message
    with pytest.raises(CompileError):
        canonical.serialize(model)


def _without_value(model: ir.Model) -> None:
    model.graph.initializers["a"].const_value = None


def _unimported(model: ir.Model) -> None:
    model.graph[0].domain = "nobody.imports.it"


def _with_function(model: ir.Model) -> None:
    graph = ir.Graph([], [], nodes=[], opset_imports={"": 17})
    model.functions["d", "f", ""] = ir.Function("d", "f", graph=graph, attributes=[])


@pytest.mark.parametrize("change", [_without_value, _unimported, _with_function])
def test_what_no_stage_may_hand_on_is_a_bug(change: Callable[[ir.Model], None]) -> None:
    model = _model()
    change(model)
    with pytest.raises(EpctxError, match="report it"):
        canonical.serialize(model)


def test_a_tensor_that_lies_about_its_size_is_a_bug() -> None:
    class Liar(ir.Tensor[np.ndarray]):
        def tobytes(self) -> bytes:
            return b"123"

    model = _large(np.zeros(500, np.float32))
    model.graph.initializers["w"].const_value = Liar(np.zeros(500, np.float32), name="w")
    with pytest.raises(EpctxError, match="3 bytes, its shape 2000"):
        canonical.serialize(model)


class TestIsCanonical:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        model = _model()
        model.metadata_props["ep_compatibility_info.X"] = "v1"
        big = ir.Value(name="big", const_value=ir.tensor(np.ones(5000, np.float32), name="big"))
        model.graph.initializers.add(big)
        node = ir.Node("", "Neg", [big], outputs=[ir.Value(name="n")], name="n")
        model.graph.append(node)
        (tmp_path / "m.onnx").write_bytes(canonical.serialize(model))
        return tmp_path / "m.onnx"

    def test_what_serialize_wrote_is(self, path: Path) -> None:
        assert canonical.is_canonical(path)

    @pytest.mark.parametrize(
        "change",
        [
            lambda m: setattr(m, "producer_version", "1"),
            lambda m: setattr(m, "doc_string", "doc"),
            lambda m: setattr(m.graph.node[0], "doc_string", "doc"),
            lambda m: m.opset_import.add(domain="z", version=1),
            lambda m: m.graph.initializer.reverse(),
            lambda m: m.metadata_props.add(key="a", value="b"),
            lambda m: setattr(m, "ir_version", 9),
            lambda m: m.graph.sparse_initializer.add(),
            lambda m: m.functions.add(name="f", domain="d"),
        ],
    )
    def test_what_was_changed_is_not(
        self, path: Path, change: Callable[[onnx.ModelProto], object]
    ) -> None:
        model = onnx.load(path)
        change(model)
        path.write_bytes(model.SerializeToString(deterministic=True))
        assert not canonical.is_canonical(path)

    @pytest.mark.parametrize("data", [b"", b"garbage", b"\x08\x08\x3a\xff"])
    def test_what_is_no_model_is_not(self, path: Path, data: bytes) -> None:
        path.write_bytes(data)
        assert not canonical.is_canonical(path)

    def test_a_truncated_file_is_not(self, path: Path) -> None:
        path.write_bytes(path.read_bytes()[:-1])
        assert not canonical.is_canonical(path)

    def test_fields_that_protobuf_would_merge_are_not(self, path: Path) -> None:
        path.write_bytes(path.read_bytes() + wire.embedded(7, b""))
        assert not canonical.is_canonical(path)

    def test_references_are_compared_and_not_followed(self, path: Path) -> None:
        model = _large(np.zeros(500, np.float32))
        model.graph.initializers["w"].const_value = ir.ExternalTensor(
            "gone.bin", 0, 2000, ir.DataType.FLOAT, shape=ir.Shape([500]), name="w"
        )
        path.write_bytes(canonical.serialize(model))
        assert canonical.is_canonical(path)
