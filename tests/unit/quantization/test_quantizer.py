"""One model quantized by onnxruntime's tools: the same bytes for the same ranges, and who is to
blame if nothing comes out.
"""

from __future__ import annotations

import logging
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper, version_converter

from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError
from epctx.manifest import Calibration, Preset, QuantizeSettings, TensorOverride, WeightOnly
from epctx.quantization import quantizer, samples
from epctx.quantization.quantizer import Quantizer
from tests.kit import onnx_text
from tests.kit.building import mlp

RANDOM = Calibration(random=True, count=2)


def tool(
    folder: Path, model: onnx.ModelProto | None = None, preset: Preset = "qnn", **settings: Any
) -> Quantizer:
    folder.mkdir(exist_ok=True)
    plain = folder / "float.onnx"
    found = onnx.shape_inference.infer_shapes(model or mlp(width=32, layers=2))
    onnx.save(found, plain)
    asked = QuantizeSettings(calibration=RANDOM, **settings)
    return Quantizer(name="a", plain=plain, settings=asked, preset=preset)


def run(made: Quantizer) -> onnx.ModelProto:
    prepared = quantizer.prepare([made])[0]
    given = samples.of(made.plain, "a", RANDOM)
    output = made.plain.with_name("output.onnx")
    made.run(prepared, output, made.calibrate(prepared, given))
    made.require_effect([prepared], output)
    return onnx.load(output)


def inputs_of(model: onnx.ModelProto, node: str) -> Counter[str]:
    """The op types that make a node's inputs."""
    makers = {name: each.op_type for each in model.graph.node for name in each.output}
    (found,) = (each for each in model.graph.node if each.name == node)
    return Counter(makers.get(name, "") for name in found.input)


def test_a_node_without_a_name_is_named_by_what_it_makes(tmp_path: Path) -> None:
    made = onnx_text.proto(
        "g (float[1,4] x) => (uint8[1,4] y) <float s = {1.0}, uint8 z = {0}> {"
        " y = QuantizeLinear(x, s, z) }"
    )
    with pytest.raises(ModelError, match="the QuantizeLinear node that makes 'y' is in it"):
        run(tool(tmp_path / "made", made))


@pytest.mark.parametrize(("preset", "scales"), [("qnn", 3), ("cpu", 1)])
def test_for_qnn_no_two_nodes_share_a_constant(preset: Preset, scales: int, tmp_path: Path) -> None:
    made = onnx_text.proto(
        "g (float[1,4] x) => (float[1,4] y) <float[4] w = {1.0, 2.0, 3.0, 4.0}> {"
        " a = Mul(x, w) b = Mul(a, w) y = Mul(b, w) }"
    )
    found = run(tool(tmp_path, made, preset))
    taken = [t for t in found.graph.initializer if t.name.endswith("_scale") and t.name[0] == "w"]
    assert len(taken) == scales


@pytest.mark.parametrize("preset", ["qnn", "cpu"])
def test_metadata_is_kept_and_no_fault_of_a_model(preset: Preset, tmp_path: Path) -> None:
    made = mlp(width=32, layers=2)
    helper.set_model_props(made, {"author": "me", "onnx.infer": "another tool"})
    found = run(tool(tmp_path, made, preset))
    metadata = {each.key: each.value for each in found.metadata_props}
    assert metadata["author"] == "me" and "onnx.infer" in metadata
    plain = run(tool(tmp_path / "plain", mlp(width=32, layers=2), preset))
    del found.metadata_props[:], plain.metadata_props[:]
    assert found == plain


def normalized() -> onnx.ModelProto:
    """A convolution, and a BatchNormalization behind it."""
    return onnx_text.proto(
        "g (float[1,1,4] x) => (float[1,2,4] y) <float[2,1,1] w = {1.0, 2.0}, float[2] s ="
        " {0.5, 3.0}, float[2] b = {0.1, 0.2}, float[2] m = {0.5, 0.5}, float[2] v = {1.0, 2.0}>"
        " { [conv] c = Conv(x, w) [norm] y = BatchNormalization(c, s, b, m, v) }"
    )


def test_for_qnn_no_normalization_of_a_batch_is_quantized(tmp_path: Path) -> None:
    made = run(tool(tmp_path, normalized()))
    assert inputs_of(made, "conv") == {"DequantizeLinear": 3}
    assert "BatchNormalization" not in {node.op_type for node in made.graph.node}


@pytest.mark.parametrize(
    "excluded", [{"exclude_nodes": ("no*",)}, {"exclude_op_types": ("BatchNormalization",)}]
)
def test_a_normalization_that_is_excluded_stays_float(
    excluded: dict[str, Any], tmp_path: Path
) -> None:
    made = run(tool(tmp_path, normalized(), **excluded))
    assert inputs_of(made, "norm") == {"DequantizeLinear": 1, "": 4}


@pytest.mark.parametrize("preset", ["qnn", "cpu"])
@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("c", "it is fused away or float"),
        ("p", "it has the range of 'r'"),
        ("f", "it has the range of 'r'"),
    ],
)
def test_an_override_that_does_nothing_is_refused(
    name: str, why: str, preset: Preset, tmp_path: Path
) -> None:
    made = onnx_text.proto(
        "g (float[1,2,4,4] x) => (float[1,8] y) <float[2,2,1,1] w = {1.0, 2.0, 3.0, 4.0}> {"
        " c = Conv(x, w) r = Relu(c) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r)"
        " f = Flatten(p) y = Add(f, f) }"
    )
    given = {name: TensorOverride(range=(-2.0, 2.0))}
    with pytest.raises(ManifestError, match=f"override of '{name}' does nothing") as refused:
        run(tool(tmp_path / "a", made, preset, overrides=given))
    assert refused.value.why == why and refused.value.code is Code.NOTHING_EXCLUDED
    listed = refused.value.remedy.partition("nearest first: ")[2].split(", ")
    assert listed[0] in "rxy" and set(listed) == {"x", "w", "r", "y"}
    for each in listed:
        run(
            tool(tmp_path / each, made, preset, overrides={each: TensorOverride(range=(-2.0, 2.0))})
        )


def test_a_type_that_a_tensor_gets_is_no_override_that_does_nothing(tmp_path: Path) -> None:
    made = onnx_text.proto(
        "g (float[1,2,4,4] x) => (float[1,2,2,2] y) {"
        " r = Sigmoid(x) p = MaxPool<kernel_shape=[2,2], strides=[2,2]>(r) y = Tanh(p) }"
    )
    run(tool(tmp_path, made, overrides={"p": TensorOverride(type="uint8")}))


def test_four_bits_need_the_opset_that_has_them(tmp_path: Path) -> None:
    old = version_converter.convert_version(mlp(width=32, layers=2), 18)
    few = {"w0": TensorOverride(type="int4")}
    made = run(tool(tmp_path, old, activations="uint8", overrides=few))
    assert {each.domain: each.version for each in made.opset_import}[""] == 21
    types = {each.name: each.data_type for each in made.graph.initializer}
    assert types["w0_quantized"] == onnx.TensorProto.INT4
    assert "com.microsoft" not in {each.domain for each in made.graph.node}


def test_sixteen_bits_at_an_older_opset_are_standard_operators(tmp_path: Path) -> None:
    made = run(tool(tmp_path, version_converter.convert_version(mlp(width=32, layers=2), 18)))
    assert {each.domain for each in made.graph.node} == {""}, "nothing reads the shapes of others"


def test_weights_in_blocks_and_the_rest_by_ranges(tmp_path: Path) -> None:
    made = run(tool(tmp_path, weight_only=WeightOnly(bits=4, block_size=16)))
    ops = Counter(node.op_type for node in made.graph.node)
    assert ops["MatMulNBits"] == 2 and "MatMul" not in ops
    assert ops["QuantizeLinear"] > 2
    assert "w0" not in {tensor.name for tensor in made.graph.initializer}


def test_what_is_excluded_is_in_no_block(tmp_path: Path) -> None:
    made = tool(tmp_path, weight_only=WeightOnly(), exclude_nodes=("mm0",))
    ops = Counter(node.op_type for node in onnx.load(quantizer.prepare([made])[0]).graph.node)
    assert (ops["MatMulNBits"], ops["MatMul"]) == (1, 1)


@pytest.mark.parametrize(
    ("settings", "code", "where"),
    [
        ({"exclude_nodes": ("mm9",)}, Code.NOTHING_EXCLUDED, "quantize.exclude.nodes"),
        ({"exclude_op_types": ("Conv",)}, Code.NOTHING_EXCLUDED, "quantize.exclude.op_types"),
        ({"overrides": {"w9": TensorOverride()}}, Code.NOTHING_EXCLUDED, "quantize.overrides"),
        ({"weights": "int4"}, Code.WRONG_VALUE, "quantize.weights"),
    ],
)
def test_settings_that_do_not_fit_the_model(
    settings: dict[str, Any], code: Code, where: str, tmp_path: Path
) -> None:
    with pytest.raises(ManifestError) as caught:
        run(tool(tmp_path, **settings))
    assert (caught.value.failure.code, caught.value.failure.where) == (code, where)


def test_few_values_are_left_to_who_excludes_the_products(tmp_path: Path) -> None:
    made = run(tool(tmp_path, weights="int4", exclude_op_types=("MatMul",)))
    assert quantizer.quantized_nodes(made)


def test_what_the_tools_raise_is_told_and_nothing_of_theirs_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        assert tempfile.gettempdir() == str(tmp_path)
        raise KeyError("axis")

    monkeypatch.setattr(quantizer, "qnn_preprocess_model", fails)
    before = tempfile.tempdir
    with pytest.raises(ModelError, match="fails at preparing it") as caught:
        quantizer.prepare([tool(tmp_path)])[0]
    assert caught.value.failure.why == "KeyError: 'axis'"
    assert tempfile.tempdir == before
    assert logging.root.manager.disable == logging.NOTSET


def test_values_that_are_not_finite_are_no_ranges(tmp_path: Path) -> None:
    model = mlp(width=32, layers=2, tail="Log")
    with pytest.raises(ModelError, match="values that are not finite, first in 'y'"):
        run(tool(tmp_path, model))


def test_a_range_that_is_not_there_is_told_by_its_tensor(tmp_path: Path) -> None:
    made = tool(tmp_path)
    prepared = quantizer.prepare([made])[0]
    found = dict(made.calibrate(prepared, samples.of(made.plain, "a", RANDOM)))
    del found["r0"]
    with pytest.raises(ManifestError, match="its tensor 'r0' has no range"):
        made.run(prepared, tmp_path / "output.onnx", found)


def test_ranges_begin_where_masks_end(tmp_path: Path) -> None:
    scales = []
    for number, floor in enumerate((None, -0.5)):
        made = run(tool(tmp_path / str(number), range_floor=floor))
        by_name = {each.name: onnx.numpy_helper.to_array(each) for each in made.graph.initializer}
        scales.append(float(by_name["x_scale"]))
    assert scales[0] > 1.2 * scales[1], "the other end stays"
