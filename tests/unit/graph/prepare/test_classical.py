from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from epctx.graph.prepare import inference
from epctx.graph.serde import protos
from tests.kit import onnx_text

BODY = {
    "Scaler": "ai.onnx.ml.Scaler <offset = [1.0], scale = [2.0]>",
    "Normalizer": 'ai.onnx.ml.Normalizer <norm = "L1">',
    "Imputer": "ai.onnx.ml.Imputer <imputed_value_floats = [0.5]>",
}
OPSETS = '"" : 17, "ai.onnx.ml" : 1'


def types(model: onnx.ModelProto) -> dict[str, tuple[int, list[int | str]]]:
    return {
        value.name: (
            value.type.tensor_type.elem_type,
            [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim],
        )
        for value in protos.values(model)
    }


@pytest.mark.parametrize("op_type", BODY)
@pytest.mark.parametrize("opsets", [OPSETS, '"" : 5, "ai.onnx.ml" : 1'])
def test_what_it_makes_and_what_follows_is_known(op_type: str, opsets: str) -> None:
    text = f"g (float[n,4] x) => (float[m,4] y) {{ t = {BODY[op_type]} (x) y = Relu (t) }}"
    model = onnx_text.proto(text, opsets=opsets)
    found = inference.infer(model)
    assert list(found.graph.node) == list(model.graph.node)
    assert list(found.opset_import) == list(model.opset_import)
    if '"" : 17' in opsets:
        assert types(found)["t"] == (TensorProto.FLOAT, ["n", 4])


def test_nothing_is_imported_that_was_not() -> None:
    text = f"g (int64[2,4] x) => (float[a,b] y) {{ y = {BODY['Scaler']} (x) }}"
    model = onnx_text.proto(text, opsets='"ai.onnx.ml" : 1')
    found = inference.infer(model)
    assert types(found)["y"] == (TensorProto.FLOAT, [2, 4])
    assert list(found.opset_import) == list(model.opset_import)


def test_nodes_in_bodies_are_put_back() -> None:
    branch = f"a () => (float[2,4] y) {{ y = {BODY['Normalizer']} (x) }}"
    model = onnx_text.proto(
        f"g (bool c, float[2,4] x) => (float[k,l] z) {{ z = If (c) <then_branch = {branch}, "
        f"else_branch = {branch}> }}",
        opsets=OPSETS,
    )
    found = inference.infer(model)
    assert [node.op_type for node in protos.nodes(found)] == ["If", "Normalizer", "Normalizer"]
    assert types(found)["z"] == (TensorProto.FLOAT, [2, 4])


@pytest.mark.parametrize("op_type", BODY)
@pytest.mark.parametrize("shape", [(3,), (2, 3)])
@pytest.mark.parametrize("kind", [TensorProto.FLOAT, TensorProto.INT64])
def test_kernels_make_the_shape_and_the_type(op_type: str, shape: tuple[int], kind: int) -> None:
    text = f"g (float[a] x) => (float[b] y) {{ y = {BODY[op_type]} (x) }}"
    model = onnx_text.proto(text, opsets=OPSETS)
    if op_type == "Imputer" and kind == TensorProto.INT64:
        del model.graph.node[0].attribute[:]
        attribute = helper.make_attribute("imputed_value_int64s", [1])
        model.graph.node[0].attribute.append(attribute)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", kind, shape))
    model.graph.output[0].Clear()
    model.graph.output[0].name = "y"
    x = np.arange(np.prod(shape)).reshape(shape).astype(helper.tensor_dtype_to_np_dtype(kind))
    (y,) = onnx_text.session(model).run(None, {"x": x})
    inferred = inference.infer(model)
    element, dims = types(inferred)["y"]
    assert y.dtype == helper.tensor_dtype_to_np_dtype(element) and list(y.shape) == dims


def test_of_a_normalizer_by_l2_no_shape_is_told() -> None:
    """ONNX Runtime 1.31.1 would compute in place, and read what it has written."""
    text = (
        "g (float[2,4] x) => (float[2,4] y) "
        '{ t = Neg (x) n = ai.onnx.ml.Normalizer <norm = "L2"> (t) y = Neg (n) }'
    )
    found = inference.infer(onnx_text.proto(text, opsets=OPSETS))
    assert "n" not in types(found)
    x = np.array([[1, 2, 3, 4], [-1, 0, 1, 5]], np.float32)
    right = x / np.linalg.norm(x, axis=1, keepdims=True)
    (y,) = onnx_text.session(found).run(None, {"x": x})
    assert np.allclose(y, right)
    found.graph.value_info.append(helper.make_tensor_value_info("n", TensorProto.FLOAT, [2, 4]))
    (wrong,) = onnx_text.session(found).run(None, {"x": x})
    assert not np.allclose(wrong, right), "ONNX Runtime is mended: its shape may be told"


@pytest.mark.parametrize("number", [TensorProto.FLOAT, TensorProto.FLOAT16])
def test_quantizers_of_onnx_runtime_make_the_types_that_their_constants_tell(number: int) -> None:
    """ONNX's own of opset 17 makes no 16-bit integers, and no float16."""
    text = """g (float[2,3] x) => (float[2,3] y, uint16[2,3] q, uint8[2,3] p) {
        p = com.microsoft.QuantizeLinear (x, s)
        q = com.microsoft.QuantizeLinear (x, s, z)
        y = com.microsoft.DequantizeLinear (q, s, z)
    }"""
    model = onnx_text.proto(text, opsets='"" : 17, "com.microsoft" : 1')
    model.graph.initializer.append(helper.make_tensor("s", number, [], [0.5]))
    model.graph.initializer.append(helper.make_tensor("z", TensorProto.UINT16, [], [3]))
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.elem_type = number
    made = onnx_text.session(model).run(
        None, {"x": np.ones([2, 3], helper.tensor_dtype_to_np_dtype(number))}
    )
    del model.graph.output[1:]
    found = inference.infer(model)
    assert list(found.graph.node) == list(model.graph.node)
    for name, values in zip("yqp", made, strict=True):
        assert types(found)[name] == (helper.np_dtype_to_tensor_dtype(values.dtype), [2, 3])
