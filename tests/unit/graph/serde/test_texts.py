from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from epctx.errors import ModelError
from epctx.graph.serde import texts

WORDS = [
    "mdom", "mkey", "mval", "odom", "fnam", "fdom", "fovr", "fdoc", "finp", "fatt", "fopd", "fkey",
    "nnam", "nopt", "ndom", "novr", "ndoc", "ninp", "nout", "nkey", "anam", "aref", "adoc", "gnam",
    "gdoc", "gkey", "qnam", "qkey", "qval", "vnam", "vdoc", "vkey", "dpar", "ddnt", "vdnt", "tnam",
    "tdoc", "tkey", "inam", "idim", "snam",
]  # fmt: skip
"""Every text of the model below, each once, so that it can be broken."""


def _model() -> onnx.ModelProto:
    node = onnx.NodeProto(
        name="nnam", op_type="nopt", domain="ndom", overload="novr", doc_string="ndoc"
    )
    node.input.append("ninp")
    node.output.append("nout")
    node.metadata_props.add(key="nkey", value="v")
    node.attribute.add(name="anam", ref_attr_name="aref", doc_string="adoc", type=2)
    inner = helper.make_graph([], "inam", [helper.make_tensor_value_info("x", 1, ["idim"])], [])
    node.attribute.append(helper.make_attribute("body", inner))
    tensor = numpy_helper.from_array(np.zeros(1, np.float32), "tnam")
    tensor.doc_string = "tdoc"
    tensor.metadata_props.add(key="tkey", value="v")
    value = helper.make_tensor_value_info("vnam", TensorProto.FLOAT, ["dpar"], "vdoc")
    value.type.denotation = "vdnt"
    value.type.tensor_type.shape.dim[0].denotation = "ddnt"
    value.metadata_props.add(key="vkey", value="v")
    graph = helper.make_graph([node], "gnam", [value], [], [tensor], doc_string="gdoc")
    graph.metadata_props.add(key="gkey", value="v")
    annotation = graph.quantization_annotation.add(tensor_name="qnam")
    annotation.quant_parameter_tensor_names.add(key="qkey", value="qval")
    graph.sparse_initializer.add().values.name = "snam"
    function = onnx.FunctionProto(
        name="fnam", domain="fdom", overload="fovr", doc_string="fdoc", input=["finp"]
    )
    function.attribute.append("fatt")
    function.opset_import.add(domain="fopd", version=1)
    function.metadata_props.add(key="fkey", value="v")
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("odom", 1)])
    model.functions.append(function)
    model.domain = "mdom"
    model.metadata_props.add(key="mkey", value="mval")
    return model


def _broken() -> Iterator[tuple[str, onnx.ModelProto]]:
    data = _model().SerializeToString()
    for word in WORDS:
        assert data.count(word.encode()) == 1
        broken = data.replace(word.encode(), word[:2].encode() + b"\xff\xfe")
        yield word, onnx.ModelProto.FromString(broken)


def test_a_model_of_texts_is_let_through() -> None:
    texts.require_utf8(_model(), where="m.onnx")


@pytest.mark.parametrize(("word", "model"), list(_broken()), ids=WORDS)
def test_a_text_that_is_not_utf8_is_refused(word: str, model: onnx.ModelProto) -> None:
    with pytest.raises(ModelError, match="is not UTF-8") as caught:
        texts.require_utf8(model, where="m.onnx")
    assert f"b'{word[:2]}\\xff\\xfe'" in str(caught.value)
