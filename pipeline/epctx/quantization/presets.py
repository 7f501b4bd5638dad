"""Settings of a manifest as configurations of `onnxruntime.quantization`.

The presets are onnxruntime's own: `get_qnn_qdq_config` for the NPUs of Qualcomm, `get_qdq_config`
for the rest. A ResNet-50 with 16-bit activations and uint8 weights has 18 dB, and 26 dB with a
scale for each channel, which no default of onnxruntime has. It has 27 dB with int8 weights. But QNN
2.7.0 then takes no LayerNormalization, and takes 430 of a BERT's 463 nodes, in nine pieces
(measured on x86). OpenVINO's plugins compute 8-bit integers with symmetric weights, a scale for
each channel (https://docs.openvino.ai, "Basic Quantization Flow").
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from msgspec import Struct
from onnxruntime.quantization import CalibrationMethod, QuantType, get_qdq_config
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config
from onnxruntime.quantization.quantize import StaticQuantConfig

from epctx.manifest import Preset, QuantizeSettings, TensorOverride

TYPES: Final[Mapping[str, QuantType]] = {
    "uint16": QuantType.QUInt16,
    "int16": QuantType.QInt16,
    "uint8": QuantType.QUInt8,
    "int8": QuantType.QInt8,
    "uint4": QuantType.QUInt4,
    "int4": QuantType.QInt4,
}
Override = Mapping[str, Any]
"""Settings of a tensor, as `onnxruntime.quantization` takes them in `TensorQuantOverrides`."""
_METHODS: Final[Mapping[str, CalibrationMethod]] = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}


class Chosen(Struct, frozen=True, kw_only=True):
    """Settings, completed by the preset's."""

    activations: str
    weights: str
    per_channel: bool
    symmetric_activations: bool
    symmetric_weights: bool


_OF: Final[Mapping[Preset, tuple[str, str, bool]]] = {
    "qnn": ("uint16", "uint8", True),
    "openvino": ("uint8", "int8", True),
    "cpu": ("uint8", "int8", False),
}
"""Activations, weights, and whether each channel of a weight has its own scale."""


def choose(settings: QuantizeSettings, preset: Preset) -> Chosen:
    """Complete settings by the preset's; weights of signed types are symmetric, as
    onnxruntime's.
    """
    activations, weights, per_channel = _OF[preset]
    activations = settings.activations or activations
    # onnxruntime has no unsigned weights beside activations of int8.
    weights = settings.weights or ("int8" if activations == "int8" else weights)
    symmetric = settings.symmetric
    return Chosen(
        activations=activations,
        weights=weights,
        per_channel=per_channel if settings.per_channel is None else settings.per_channel,
        symmetric_activations=bool(symmetric),
        symmetric_weights=weights.startswith("int") if symmetric is None else symmetric,
    )


def config(
    model: Path,
    settings: QuantizeSettings,
    preset: Preset,
    *,
    exclude: Sequence[str],
    op_types: Sequence[str],
    fixed: Mapping[str, Override] = {},
) -> StaticQuantConfig:
    """Return the configuration for a model, without samples.

    Args:
        model: the prepared model, whose weights are not read.
        exclude: names of nodes that stay float.
        op_types: op types that may be quantized; empty for all that can be.
        fixed: settings of tensors that do not depend on their ranges.
    """
    chosen = choose(settings, preset)
    common: dict[str, Any] = {
        "calibrate_method": _METHODS[settings.method],
        "activation_type": TYPES[chosen.activations],
        "weight_type": TYPES[chosen.weights],
        "per_channel": chosen.per_channel,
        "activation_symmetric": chosen.symmetric_activations,
        "weight_symmetric": chosen.symmetric_weights,
        "op_types_to_quantize": list(op_types) or None,
        "nodes_to_exclude": list(exclude),
    }
    overrides = {name: [_override(each)] for name, each in settings.overrides.items()}
    overrides |= {name: [dict(each)] for name, each in fixed.items()}
    if preset == "qnn":
        result = get_qnn_qdq_config(model, None, init_overrides=overrides or None, **common)
    else:
        result = get_qdq_config(model, None, tensor_quant_overrides=overrides or None, **common)
    # Standard operators: the model is of an opset that has them for every type.
    result.extra_options.pop("UseQDQContribOps", None)
    result.extra_options["CalibStridedMinMax"] = 1  # one sample at a time, whatever the method
    result.op_types_to_quantize = [t for t in result.op_types_to_quantize if t != "MatMulNBits"]
    return result


def _override(settings: TensorOverride) -> Override:
    override: dict[str, Any] = {}
    if settings.type is not None:
        override["quant_type"] = TYPES[settings.type]
    if settings.symmetric is not None:
        override["symmetric"] = settings.symmetric
    if settings.range is not None:
        # onnxruntime asks an activation's range for its dtype, which a plain float does not have.
        override["rmin"], override["rmax"] = map(np.float32, settings.range)
    return override
