from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from epctx.graph.serde import canonical, protos, types
from tests.kit import onnx_text

ZIPPED = (
    "g (float[1,2] x, map(string,double) m, map(int64,float) unused) => "
    "(seq(map(int64,float)) y, float[1,2] d) "
    "{ t = Softmax(x) y = ai.onnx.ml.ZipMap <classlabels_int64s = [1, 2]> (t) "
    'd = ai.onnx.ml.DictVectorizer <string_vocabulary = ["a", "b"]> (m) }'
)


def parsed(text: str) -> onnx.ModelProto:
    """The parser says that values of maps are scalars, which they always are: it is dropped."""
    proto = onnx_text.proto(text, opsets='"" : 20, "ai.onnx.ml" : 1')
    for info in protos.values(proto):
        kind = info.type
        kind = kind.sequence_type.elem_type if kind.HasField("sequence_type") else kind
        if kind.HasField("map_type"):
            kind.map_type.value_type.tensor_type.ClearField("shape")
    return proto


def zipped() -> onnx.ModelProto:
    proto = parsed(ZIPPED)
    proto.graph.input[1].type.denotation = "WORDS"
    return proto


def test_maps_are_read_and_written() -> None:
    proto = zipped()
    before = proto.SerializeToString()
    model = types.from_proto(proto)
    floats, doubles = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.DOUBLE)
    sequence = ir.SequenceType(types.MapType(ir.DataType.INT64, floats))
    assert model.graph.outputs[0].type == sequence and model.graph.outputs[0].shape is None
    words = model.graph.inputs[1].type
    assert words == types.MapType(ir.DataType.STRING, doubles) and words.denotation == "WORDS"
    assert proto.SerializeToString() == before
    written = types.to_proto(model)
    for ours, own in zip((*written.graph.input, *written.graph.output),
                         (*proto.graph.input, *proto.graph.output), strict=True):  # fmt: skip
        assert ours.type == own.type, ours.name
    assert model.graph.outputs[0].type == sequence, "the model stays as it is"


def test_the_canonical_form_has_maps_and_is_read_again() -> None:
    data = canonical.serialize(types.from_proto(zipped()))
    again = onnx.ModelProto.FromString(data)
    kind = again.graph.output[0].type.sequence_type.elem_type.map_type
    assert kind.key_type == TensorProto.INT64
    assert kind.value_type.tensor_type.elem_type == TensorProto.FLOAT
    assert canonical.serialize(types.from_proto(again)) == data


def test_maps_differ_by_keys_and_values() -> None:
    floats, doubles = ir.TensorType(ir.DataType.FLOAT), ir.TensorType(ir.DataType.DOUBLE)
    one = types.MapType(ir.DataType.INT64, floats)
    assert one == types.MapType(ir.DataType.INT64, floats) and hash(one) == hash(
        types.MapType(ir.DataType.INT64, floats)
    )
    assert one != types.MapType(ir.DataType.STRING, floats)
    assert one != types.MapType(ir.DataType.INT64, doubles) and one != floats


def test_a_model_is_whole_again_after_a_failed_write(monkeypatch: pytest.MonkeyPatch) -> None:
    model = types.from_proto(zipped())
    kind = model.graph.outputs[0].type

    def fail(model: ir.Model) -> onnx.ModelProto:
        raise ir.serde.SerdeError("no")

    monkeypatch.setattr(ir.serde, "serialize_model", fail)
    with pytest.raises(ir.serde.SerdeError):
        types.to_proto(model)
    assert model.graph.outputs[0].type is kind
