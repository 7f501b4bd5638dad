"""Ranges as plain numbers: the same text for the same ranges, and each bit of them back."""

import json
import math
from pathlib import Path

import numpy as np
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorData, TensorsData

from epctx.quantization import ranges


def test_of_a_calibration_only_the_ends_are_kept() -> None:
    data = {
        "scalar": TensorData(lowest=np.float32(-1.5), highest=np.float32(2)),
        "array": TensorData(lowest=np.array([0], np.float32), highest=np.array([1], np.float32)),
    }
    found = ranges.of_calibration(TensorsData(CalibrationMethod.MinMax, data))
    assert found == {"scalar": (-1.5, 2.0), "array": (0.0, 1.0)}


def test_an_empty_tensor_has_the_range_of_zero() -> None:
    """Calibration finds nothing in it: its lowest value is infinity, its highest minus infinity."""
    data = {"e": TensorData(lowest=np.float32(math.inf), highest=np.float32(-math.inf))}
    found = ranges.of_calibration(TensorsData(CalibrationMethod.MinMax, data))
    assert found == {"e": (0.0, 0.0)} and not ranges.infinite(found)


def test_a_file_is_what_onnxruntime_writes_itself(tmp_path: Path) -> None:
    from onnxruntime.quantization.quantize import load_tensors_data

    path = tmp_path / "ranges.json"
    ranges.write({"b": (0.1, 2.0), "a": (-3.0, 3.4028234663852886e38)}, path)
    found = load_tensors_data(path.as_posix())
    assert found.calibration_method == CalibrationMethod.MinMax
    assert {name: each.range_value for name, each in found.items()} == {
        "a": (np.float32(-3), np.float32(3.4028234663852886e38)),
        "b": (np.float32(0.1), np.float32(2)),
    }
    assert [*json.loads(path.read_text())["data"]] == ["a", "b"]


def test_what_is_below_a_floor_is_raised_and_named() -> None:
    found = {"mask": (-3.4e38, 0.5), "scores": (-7.0, 700.0), "broken": (math.nan, 1.0)}
    assert ranges.infinite(found) == ["broken"]
    assert ranges.below(found, -100) == ["mask"]
    raised = ranges.raised({"mask": (-3.4e38, -1e9), "scores": (-7.0, 700.0)}, -100)
    assert raised == {"mask": (-100, -100), "scores": (-7.0, 700.0)}
    assert ranges.raised({"mask": (-3.4e38, 0.5)}, None) == {"mask": (-3.4e38, 0.5)}
