"""A float model in a file made a quantized one, by `onnxruntime.quantization` alone.

Nothing here decides what a range is or how a weight is rounded. What is ours: which bytes come out
is a function of the model, the settings and the ranges; and who is to blame if nothing does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import onnx
from onnxruntime.quantization import QuantFormat, quantize_static
from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.shape_inference import quant_pre_process

from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ModelError
from epctx.manifest import Preset, QuantizeSettings
from epctx.quantization import presets
from epctx.quantization.samples import Samples
from epctx.text import did_you_mean

INTEGER_OPS: Final = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits"),
    *("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"),
)
"""What tells that a model, or a node's input, is quantized."""


def refuse_quantized(model: onnx.ModelProto, name: str) -> None:
    """A model that is quantized already is not quantized again.

    Raises:
        ModelError: it is.
    """
    found = next((node for node in model.graph.node if node.op_type in INTEGER_OPS), None)
    if found is not None:
        raise ModelError(
            "is quantized already",
            model=name,
            why=f"{found.op_type} {found.name!r} is in it",
            remedy="take `quantize` out of its group, and name the float model as its `reference`",
            code=Code.NOT_QUANTIZED,
        )


def prepare(model: Path, preset: Preset, name: str) -> Path:
    """The model as it is quantized: fused where the preset's EP has an operator for it.

    Raises:
        ModelError: onnxruntime's tools fail on it.
    """
    prepared = model.with_name("prepared.onnx")
    large = _is_large(model)
    with _blamed(name, "preparing it"):
        if preset == "qnn":
            changed = qnn_preprocess_model(
                model,
                prepared,
                save_as_external_data=large,
                all_tensors_to_one_file=True,
                external_data_location=f"{prepared.name}.data",
            )
            return prepared if changed else model
        quant_pre_process(
            model,
            prepared,
            skip_optimization=large,
            skip_symbolic_shape=True,
            save_as_external_data=large,
            all_tensors_to_one_file=True,
            external_data_location=f"{prepared.name}.data",
        )
    return prepared


def run(
    prepared: Path,
    output: Path,
    settings: QuantizeSettings,
    preset: Preset,
    *,
    name: str,
    samples: Samples,
    ranges: Path,
) -> None:
    """Quantize activations and weights.

    Args:
        prepared: the float model.
        output: the file that is written, and beside it `<output>.data` of a large model.
        name: of the model, for messages.
        samples: what it is calibrated with if `ranges` is not there.
        ranges: the file of its ranges; written, if it is not there.

    Raises:
        ManifestError: a pattern, an op type or a tensor of the settings is not in the model.
        ModelError: onnxruntime's tools fail on it, or find nothing to quantize.
    """
    model = onnx.load(prepared, load_external_data=False)
    exclude = _excluded(model, settings, name)
    op_types: Sequence[str] = ()
    if settings.exclude_op_types:
        every = dict.fromkeys(node.op_type for node in model.graph.node)
        op_types = [each for each in every if each not in settings.exclude_op_types]
    _refuse_unknown(settings.overrides, _tensors(model), "overrides", name)
    with _blamed(name, "quantizing it"):
        config = presets.config(prepared, settings, preset, exclude=exclude, op_types=op_types)
        options = {**config.extra_options, "CalibStridedMinMax": 1}  # one sample in memory
        quantize_static(
            prepared,
            output,
            samples,
            quant_format=QuantFormat.QDQ,
            op_types_to_quantize=config.op_types_to_quantize,
            per_channel=config.per_channel,
            reduce_range=config.reduce_range,
            activation_type=config.activation_type,
            weight_type=config.weight_type,
            nodes_to_exclude=config.nodes_to_exclude,
            use_external_data_format=config.use_external_data_format,
            calibrate_method=config.calibrate_method,
            extra_options=options,
            calibration_cache_path=ranges,
        )
    _refuse_nothing(output, name)


def run_weights(prepared: Path, output: Path, settings: QuantizeSettings, *, name: str) -> None:
    """Quantize constant weights of MatMul, in blocks; arguments and errors as of `run`."""
    assert settings.weight_only is not None
    model = onnx.load(prepared)
    exclude = _excluded(model, settings, name)
    exclude += [node.name for node in model.graph.node if node.op_type in settings.exclude_op_types]
    with _blamed(name, "quantizing it"):
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=settings.weight_only.bits,
            block_size=settings.weight_only.block_size,
            is_symmetric=True,
            nodes_to_exclude=exclude,
        )
        quantizer.process()
        quantizer.model.save_model_to_file(str(output), _is_large(prepared))
    _refuse_nothing(output, name)


def quantized_nodes(model: onnx.ModelProto) -> int:
    """How many nodes take an input that was an integer, or are such a node."""
    integers = {
        name
        for node in model.graph.node
        if node.op_type == "DequantizeLinear"
        for name in node.output
    }
    return sum(
        node.op_type in INTEGER_OPS[3:] or any(name in integers for name in node.input)
        for node in model.graph.node
        if node.op_type not in INTEGER_OPS[:3]
    )


def _is_large(model: Path) -> bool:
    return model.with_name(f"{model.name}.data").exists()


def _excluded(model: onnx.ModelProto, settings: QuantizeSettings, name: str) -> list[str]:
    for pattern in settings.exclude_nodes:
        names = [node.name for node in model.graph.node]
        if not presets.matching(model, [pattern]):
            raise _nothing("exclude.nodes", pattern, names, name)
    op_types = [node.op_type for node in model.graph.node]
    _refuse_unknown(settings.exclude_op_types, op_types, "exclude.op_types", name)
    return presets.matching(model, settings.exclude_nodes)


def _refuse_unknown(wanted: Iterable[str], known: Sequence[str], key: str, name: str) -> None:
    for each in wanted:
        if each not in known:
            raise _nothing(key, each, known, name)


def _nothing(key: str, text: str, known: Sequence[str], name: str) -> ManifestError:
    return ManifestError(
        f'"{text}" is nothing in the model as it is quantized',
        model=name,
        where=f"quantize.{key}",
        remedy=did_you_mean(text, known) or "see the names with `epctx inspect`",
        code=Code.NOTHING_EXCLUDED,
    )


def _tensors(model: onnx.ModelProto) -> list[str]:
    found = dict.fromkeys(tensor.name for tensor in model.graph.initializer)
    found |= dict.fromkeys(value.name for value in model.graph.input)
    found |= dict.fromkeys(name for node in model.graph.node for name in node.output)
    return list(found)


def _refuse_nothing(output: Path, name: str) -> None:
    model = onnx.load(output, load_external_data=False)
    if not quantized_nodes(model):
        kinds = ", ".join(sorted({node.op_type for node in model.graph.node})[:8])
        raise ModelError(
            "has nothing that onnxruntime quantizes so",
            model=name,
            why=f"of its operators ({kinds}) none with constant float weights or known ranges",
            remedy="take `quantize` out of its group, or choose another kind",
            code=Code.NOT_QUANTIZED,
        )


@contextmanager
def _blamed(name: str, doing: str) -> Iterator[None]:
    """What the tools raise is theirs: they promise no classes. What they log is advice that the
    settings here make idle.
    """
    logging.disable(logging.WARNING)
    try:
        yield
    except EpctxError:
        raise
    except Exception as error:
        raise ModelError(
            f"onnxruntime.quantization fails at {doing}",
            model=name,
            why=f"{type(error).__name__}: {error}",
            remedy="leave out what it names with `quantize.exclude`, or report it to onnxruntime",
            code=Code.NOT_QUANTIZED,
        ) from error
    finally:
        logging.disable(logging.NOTSET)
