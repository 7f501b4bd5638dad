"""What onnxruntime.quantization makes of exports: QDQ, operators of integers, weights of 4 bits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tests.zoo.recipes import Recipe
from tests.zoo.sources import exporting, text, torch_modules, vision

FLOATS: Mapping[str, exporting.Maker] = {
    "resnet": vision.MAKERS["resnet"],
    "mobilenet_v2": vision.MAKERS["mobilenet_v2"],
    "vit": vision.MAKERS["vit"],
    "bert": text.MAKERS["bert"],
    "unet": torch_modules.MODULES["unet"],
    "depthwise_squeeze": torch_modules.MODULES["depthwise_squeeze"],
}
SAMPLES = 3


def _static(form: str, activations: str, before: Path, after: Path) -> None:
    """Calibrated with random inputs; per channel where weights are of 8 bits."""
    from onnxruntime import quantization as q

    q.quantize_static(
        str(before),
        str(after),
        _calibration(before),
        quant_format=q.QuantFormat[form],
        activation_type=q.QuantType[activations],
        weight_type=q.QuantType.QInt8,
        per_channel=form == "QDQ",
    )


def _for_qnn(before: Path, after: Path) -> None:
    """Activations of 16 and weights of 8 bits, as QNN's own configuration makes them."""
    from onnxruntime import quantization as q
    from onnxruntime.quantization.execution_providers import qnn

    prepared = before.with_name("prepared.onnx")
    changed = qnn.qnn_preprocess_model(str(before), str(prepared))
    source = prepared if changed else before
    config = qnn.get_qnn_qdq_config(
        str(source),
        _calibration(source),
        activation_type=q.QuantType.QUInt16,
        weight_type=q.QuantType.QUInt8,
    )
    q.quantize(str(source), str(after), config)


def _dynamic(before: Path, after: Path) -> None:
    from onnxruntime import quantization as q

    q.quantize_dynamic(str(before), str(after), weight_type=q.QuantType.QInt8)


def _four_bits(before: Path, after: Path) -> None:
    import onnx
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    made = nbits.MatMulNBitsQuantizer(onnx.load(before), block_size=32, is_symmetric=True)
    made.process()
    made.model.save_model_to_file(str(after))


def _four_bits_apart(before: Path, after: Path) -> None:
    """Weights of 4 bits behind DequantizeLinear, as of opset 21."""
    import onnx
    from onnx import version_converter
    from onnxruntime import quantization as q
    from onnxruntime.quantization import matmul_nbits_quantizer as nbits

    model = version_converter.convert_version(onnx.load(before), 21)
    made = nbits.MatMulNBitsQuantizer(
        model, block_size=32, is_symmetric=True, quant_format=q.QuantFormat.QDQ
    )
    made.process()
    made.model.save_model_to_file(str(after))


FORMS: Mapping[str, Callable[[Path, Path], None]] = {
    "qdq_a8w8": partial(_static, "QDQ", "QUInt8"),
    "qdq_a16w8": partial(_static, "QDQ", "QUInt16"),
    "qdq_qnn": _for_qnn,
    "qoperator": partial(_static, "QOperator", "QUInt8"),
    "dynamic": _dynamic,
    "matmul_4bits": _four_bits,
    "matmul_4bits_qdq": _four_bits_apart,
}
NOT_OF_CONVOLUTIONS = frozenset({"matmul_4bits", "matmul_4bits_qdq"})
WITH_MATMUL = frozenset({"bert", "vit"})
REFUSED = frozenset({"resnet.qoperator", "mobilenet_v2.qoperator"})
"""What the quantizer itself fails on (onnxruntime 1.31.1)."""


def recipes() -> Iterator[Recipe]:
    """Each float model in each form that changes it."""
    for name, maker in FLOATS.items():
        for form, quantize in FORMS.items():
            fits = name in WITH_MATMUL or form not in NOT_OF_CONVOLUTIONS
            if fits and f"{name}.{form}" not in REFUSED:
                source = f"onnxruntime.quantization, {form}"
                yield Recipe(f"{name}.{form}", source, partial(_make, maker, quantize))


def _make(maker: exporting.Maker, quantize: Callable[[Path, Path], None], folder: Path) -> None:
    before = folder / "float"
    before.mkdir()
    exporting.export(maker, "script", before)
    quantize(before / "model.onnx", folder / "model.onnx")


def _calibration(path: Path) -> Any:
    """Random inputs for the model at `path`."""
    import numpy as np
    import onnxruntime as ort

    random = np.random.default_rng(0)
    inputs = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).get_inputs()

    def one() -> dict[str, Any]:
        return {
            each.name: random.integers(1, 8, each.shape)
            if "int64" in each.type
            else random.standard_normal(each.shape, np.float32)
            for each in inputs
        }

    class Reader:
        """What a calibrator asks for its inputs."""

        def __init__(self) -> None:
            self.left = [one() for _ in range(SAMPLES)]

        def get_next(self) -> dict[str, Any] | None:
            return self.left.pop() if self.left else None

    return Reader()
