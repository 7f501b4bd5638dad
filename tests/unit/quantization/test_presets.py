"""What a manifest asks for, as onnxruntime's tools are told it."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnxruntime.quantization import CalibrationMethod, QuantType

from epctx.manifest import Preset, QuantizeSettings, TensorOverride
from epctx.quantization import presets
from tests.kit.building import mlp


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("presets") / "m.onnx"
    onnx.save(mlp(width=8, layers=1), path)
    return path


@pytest.mark.parametrize(
    ("preset", "activations", "weights", "per_channel", "symmetric"),
    [
        ("qnn", "uint16", "uint8", True, False),
        ("openvino", "uint8", "int8", True, True),
        ("cpu", "uint8", "int8", False, True),
    ],
)
def test_what_is_not_given_is_the_presets(
    preset: Preset, activations: str, weights: str, per_channel: bool, symmetric: bool
) -> None:
    found = presets.choose(QuantizeSettings(), preset)
    assert (found.activations, found.weights) == (activations, weights)
    assert (found.per_channel, found.symmetric_weights) == (per_channel, symmetric)
    assert not found.symmetric_activations


def test_what_is_given_holds() -> None:
    settings = QuantizeSettings(
        activations="uint8", weights="uint8", per_channel=False, symmetric=True
    )
    found = presets.choose(settings, "openvino")
    assert (found.activations, found.weights, found.per_channel) == ("uint8", "uint8", False)
    assert found.symmetric_activations and found.symmetric_weights


def test_beside_activations_of_int8_weights_are_int8() -> None:
    assert presets.choose(QuantizeSettings(activations="int8"), "qnn").weights == "int8"


def test_signed_weights_are_symmetric() -> None:
    assert presets.choose(QuantizeSettings(weights="int8"), "qnn").symmetric_weights


@pytest.mark.parametrize("preset", ["qnn", "cpu"])
def test_onnxruntime_is_told_all_of_it(preset: Preset, model: Path) -> None:
    settings = QuantizeSettings(
        activations="uint16",
        weights="int8",
        method="percentile",
        overrides={"w0": TensorOverride(type="int4", symmetric=True, range=(-1, 1))},
    )
    found = presets.config(model, settings, preset, exclude=["tail"], op_types=["MatMul"])
    assert found.activation_type == QuantType.QUInt16
    assert found.weight_type == QuantType.QInt8
    assert found.calibrate_method == CalibrationMethod.Percentile
    assert "tail" in found.nodes_to_exclude and list(found.op_types_to_quantize) == ["MatMul"]
    (override,) = found.extra_options["TensorQuantOverrides"]["w0"]
    assert override["quant_type"] == QuantType.QInt4
    assert (override["rmin"], override["rmax"], override["symmetric"]) == (-1, 1, True)
    assert found.extra_options["CalibStridedMinMax"] == 1
    assert "UseQDQContribOps" not in found.extra_options, "nothing reads their shapes"


def test_weights_in_blocks_are_never_quantized_again(tmp_path: Path) -> None:
    made = mlp(width=8, layers=2)
    made.graph.node[0].op_type, made.graph.node[0].domain = "MatMulNBits", "com.microsoft"
    onnx.save(made, tmp_path / "m.onnx")
    asked = QuantizeSettings()
    found = presets.config(tmp_path / "m.onnx", asked, "qnn", exclude=[], op_types=())
    assert "MatMul" in found.op_types_to_quantize
    assert "MatMulNBits" not in found.op_types_to_quantize, "QNN crashes"


@pytest.mark.parametrize("preset", ["qnn", "cpu"])
def test_a_range_is_of_numbers_that_have_a_type(preset: Preset, model: Path) -> None:
    """onnxruntime 1.31.1 asks those of an activation for it, and a float has none."""
    settings = QuantizeSettings(overrides={"r0": TensorOverride(range=(-0.5, 2))})
    found = presets.config(model, settings, preset, exclude=(), op_types=())
    (override,) = found.extra_options["TensorQuantOverrides"]["r0"]
    assert (override["rmin"], override["rmax"]) == (-0.5, 2.0)
    assert override["rmin"].dtype == override["rmax"].dtype == np.float32
