"""Ranges of a model's tensors: from onnxruntime's calibration to plain numbers, and back.

Only the lowest and the highest value of a tensor reach the quantized model (onnxruntime 1.31.1,
each method). So histograms are left out, and any method's ranges are written as those of minmax.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import onnx
    from onnxruntime.quantization.calibrate import TensorsData

_DEQUANTIZED = re.compile(r"_DequantizeLinear_Output(_\d+)?$")
_SCALE = re.compile(r"(_quantized)?_scale(_convert)?$")
"""Endings that onnxruntime adds to a tensor's name for its scale (1.31.1)."""
Ranges = Mapping[str, tuple[float, float]]
"""Name of a tensor to its lowest and highest value."""


def text(ranges: Ranges) -> str:
    """Return ranges as text, equal for equal ranges."""
    return json.dumps({name: ranges[name] for name in sorted(ranges)}, ensure_ascii=False)


def parse(written: str) -> dict[str, tuple[float, float]]:
    """Return the ranges in a text that `text` wrote."""
    return {name: (low, high) for name, (low, high) in json.loads(written).items()}


def of_calibration(calibrated: TensorsData) -> dict[str, tuple[float, float]]:
    """Return the ranges of onnxruntime's calibration; an empty tensor's range is zero."""
    ranges = {
        name: (_number(each.lowest), _number(each.highest)) for name, each in calibrated.items()
    }
    return {name: (0.0, 0.0) if low > high else (low, high) for name, (low, high) in ranges.items()}


def write(ranges: Ranges, path: Path) -> None:
    """Write ranges as a file of `quantize_static`."""
    method = {"CLS": "CalibrationMethod", "value": "CalibrationMethod.MinMax"}
    data = {
        name: {"CLS": "TensorData", "lowest": low, "highest": high}
        for name, (low, high) in sorted(ranges.items())
    }
    document = {"CLS": "TensorsData", "calibration_method": method, "data": data}
    path.write_text(json.dumps({**document, "smooth_quant": False}), encoding="utf-8")


def owners(model: onnx.ModelProto) -> dict[str, tuple[str, int]]:
    """Map each quantized tensor to the one whose range it has, mostly itself, and to its type."""
    types = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    result: dict[str, tuple[str, int]] = {}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            name, owner = _DEQUANTIZED.sub("", node.output[0]), _SCALE.sub("", node.input[1])
            if name not in result or owner == name:
                result[name] = owner, types.get(node.input[-1], 0)
    return result


def infinite(ranges: Ranges) -> list[str]:
    """Return the tensors whose range is not finite."""
    return [name for name, both in sorted(ranges.items()) if not all(map(math.isfinite, both))]


def below(ranges: Ranges, floor: float) -> list[str]:
    """Return the tensors whose range begins below a floor."""
    return [name for name, (low, _) in sorted(ranges.items()) if low < floor]


def raised(ranges: Ranges, floor: float | None) -> dict[str, tuple[float, float]]:
    """Return the ranges, with every end below a floor raised to it."""
    lowest = -math.inf if floor is None else floor
    return {name: (max(low, lowest), max(high, lowest)) for name, (low, high) in ranges.items()}


def _number(scalar: npt.NDArray[np.floating]) -> float:
    """Return the number in a calibrator's scalar, or array of one element."""
    return float(scalar.item())
