"""Quantizing of a float model in a file, by `onnxruntime.quantization` alone.

onnxruntime decides ranges and rounding. This module makes the result a function of the model, the
settings and the ranges, and attributes failures.
"""

from __future__ import annotations

import gc
import logging
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct
from msgspec.structs import replace
from onnx import version_converter
from onnxruntime.quantization import CalibrationMethod, QuantFormat, quantize_static
from onnxruntime.quantization.calibrate import create_calibrator
from onnxruntime.quantization.execution_providers.qnn import qnn_preprocess_model
from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer
from onnxruntime.quantization.quantize import StaticQuantConfig
from onnxruntime.quantization.shape_inference import quant_pre_process

from epctx.error_codes import Code
from epctx.errors import EpctxError, ManifestError, ModelError
from epctx.graph.serde import protos
from epctx.manifest import Preset, QuantizeSettings
from epctx.providers.default import registered
from epctx.quantization import presets, qnn
from epctx.quantization import ranges as ranges_
from epctx.quantization.presets import Override
from epctx.quantization.ranges import Ranges
from epctx.quantization.samples import Samples
from epctx.text import did_you_mean

INTEGER_OPS: Final = (
    *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "MatMulNBits"),
    *("MatMulInteger", "ConvInteger", "QLinearConv", "QLinearMatMul"),
)
"""Ops of quantized models, or of quantized inputs."""
_NEAR: Final = 10
"""Maximum number of tensors that a message lists."""
_SMALL_TYPES: Final = 21
"""The first opset in which QuantizeLinear has integers of 4 and 16 bits."""
_NO_OP: Final = "no op type"
"""Replaces an empty list of op types, which onnxruntime takes for all."""
_OTHER_FLOATS: Final = (
    onnx.TensorProto.FLOAT16,
    onnx.TensorProto.BFLOAT16,
    onnx.TensorProto.DOUBLE,
)


class Quantizer(Struct, frozen=True, kw_only=True):
    """Quantizes one model, or a piece of one.

    Attributes:
        name: name of the model, for messages.
        plain: the float model, in a folder that receives other files, too.
    """

    name: str
    plain: Path
    settings: QuantizeSettings
    preset: Preset

    def fuse(self) -> tuple[Path, Mapping[str, str]]:
        """Fuse nodes for which the preset's EP has an operator; return the model and the metadata
        that was removed.

        Raises:
            ModelError: it is not a float model, or onnxruntime's tools fail on it.
        """
        self._refuse_others()
        prepared = self.plain.with_name("prepared.onnx")
        large = is_large(self.plain)
        data = f"{prepared.name}.data"
        with self._blamed("preparing it"):
            if self.preset == "qnn":
                source, metadata = self._bare()
                changed = qnn_preprocess_model(
                    source,
                    prepared,
                    save_as_external_data=large,
                    all_tensors_to_one_file=True,
                    external_data_location=data,
                )
                return prepared if changed else source, metadata
            quant_pre_process(
                self.plain,
                prepared,
                skip_optimization=large,
                skip_symbolic_shape=True,
                save_as_external_data=large,
                all_tensors_to_one_file=True,
                external_data_location=data,
            )
            return prepared, {}

    def _bare(self) -> tuple[Path, dict[str, str]]:
        """Prepare the model for onnxruntime's preprocessing for QNN: BatchNormalization is replaced
        if possible. Metadata, on which the preprocessing fails (1.32.0), is removed. Return model
        and metadata.
        """
        model = onnx.load(self.plain, load_external_data=False)
        metadata = {each.key: each.value for each in model.metadata_props}
        if not metadata and all(node.op_type != "BatchNormalization" for node in model.graph.node):
            return self.plain, {}
        onnx.load_external_data_for_model(model, str(self.plain.parent))
        qnn.fold_batchnorms(model, [node.name for node in model.graph.node if self._keeps(node)])
        del model.metadata_props[:]
        bare, large = self.plain.with_name("bare.onnx"), is_large(self.plain)
        onnx.save(model, bare, save_as_external_data=large, location=f"{bare.name}.data")
        return bare, metadata

    def _keeps(self, node: onnx.NodeProto) -> bool:
        """Tell whether the settings keep a node, or its op type, float."""
        named = any(fnmatchcase(node.name, pattern) for pattern in self.settings.exclude_nodes)
        return named or node.op_type in self.settings.exclude_op_types

    def finish(self, prepared: Path, metadata: Mapping[str, str]) -> Path:
        """Give the fused model its metadata, and the form that its EP, types and blocks of weights
        need. Raises as `fuse`.
        """
        with self._blamed("preparing it"):
            return self._changed(prepared, metadata)

    def _changed(self, prepared: Path, metadata: Mapping[str, str]) -> Path:
        model = onnx.load(prepared)
        self._refuse_few_values(model)
        changed = bool(metadata)
        if changed:
            properties = {each.key: each.value for each in model.metadata_props}
            onnx.helper.set_model_props(model, {**properties, **metadata})
        if self.preset == "qnn":
            divided, separated = qnn.divide_by_roots(model), qnn.separate_constants(model)
            changed = changed or divided or separated
        kinds = {each.type for each in self.settings.overrides.values()}
        newer = kinds & {"int16", "uint16"} or {*kinds, self.settings.weights} & {"int4", "uint4"}
        opset = next(each.version for each in model.opset_import if each.domain in ("", "ai.onnx"))
        if opset < _SMALL_TYPES and newer:  # in every piece, whatever tensors it has
            model, changed = version_converter.convert_version(model, _SMALL_TYPES), True
        if self.settings.weight_only is not None:
            model, changed = self._in_blocks(model), True
        if not changed:
            return prepared
        final, large = self.plain.with_name("final.onnx"), is_large(prepared)
        onnx.save(model, final, save_as_external_data=large, location=f"{final.name}.data")
        return final

    def _in_blocks(self, model: onnx.ModelProto) -> onnx.ModelProto:
        """Write MatMul with constant weights as MatMulNBits."""
        blocks = self.settings.weight_only
        assert blocks is not None
        excluded = self._excluded(model)
        kinds = self.settings.exclude_op_types
        excluded += [n.name for n in model.graph.node if n.op_type in kinds]
        quantizer = MatMulNBitsQuantizer(
            model,
            bits=blocks.bits,
            block_size=blocks.block_size,
            is_symmetric=True,
            nodes_to_exclude=excluded,
        )
        quantizer.process()
        made: onnx.ModelProto = quantizer.model.model
        return made

    def calibrate(self, prepared: Path, samples: Samples) -> Ranges:
        """Run the model on samples; return the ranges of its tensors.

        Raises:
            ModelError: onnxruntime's tools fail on it; a value is not finite.
        """
        config = self._config(prepared)
        with self._blamed("calibrating it"):
            calibrator = create_calibrator(
                prepared,
                config.op_types_to_quantize,
                augmented_model_path=prepared.with_name("calibrated.onnx").as_posix(),
                calibrate_method=config.calibrate_method,
                use_external_data_format=is_large(prepared),
            )
            for number in range(len(samples)):  # one in memory at a time, whatever the method
                samples.set_range(number, number + 1)
                calibrator.collect_data(samples)
            result = ranges_.of_calibration(calibrator.compute_data())
        self._refuse_infinite(result)
        return result

    def run(
        self, prepared: Path, output: Path, ranges: Ranges, given: Mapping[str, Override] = {}
    ) -> None:
        """Quantize activations and weights, into `output` and `<output>.data` of a large model.

        Args:
            given: settings of inputs that are quantized already.

        Raises:
            ManifestError: a tensor has no range.
            ModelError: onnxruntime's tools fail on it.
        """
        config = self._config(prepared, given)
        cache = self.plain.with_name("ranges.json")
        ranges_.write(ranges_.raised(ranges, self.settings.range_floor), cache)
        with self._blamed("quantizing it"):
            try:
                _quantize_static(prepared, output, config, cache)
            except (KeyError, ValueError) as error:
                raise self._no_range(error, prepared, ranges) from error

    def require_known(self, prepared: Sequence[Path]) -> None:
        """Refuse op types and patterns that match nothing in the fused pieces of the model.

        Raises:
            ManifestError: an op type or a pattern is in none of them.
        """
        nodes = [node for path in prepared for node in _bare_graph(path).node]
        names = [node.name for node in nodes]
        for pattern in self.settings.exclude_nodes:
            if not any(fnmatchcase(name, pattern) for name in names):
                raise self._nothing("exclude.nodes", pattern, names)
        kinds = dict.fromkeys(node.op_type for node in nodes)
        self._refuse_unknown(self.settings.exclude_op_types, kinds, "exclude.op_types")

    def require_tensors(self, prepared: Sequence[Path]) -> None:
        """Refuse overrides of tensors that no finished piece of the model has.

        Raises:
            ManifestError: there is such an override.
        """
        self._refuse_unknown(self.settings.overrides, _tensors_of(prepared), "overrides")

    def require_effect(self, prepared: Sequence[Path], output: Path) -> None:
        """Refuse a model without quantized nodes, and overrides that have no effect.

        Args:
            prepared: the pieces of the model.
            output: the quantized model.

        Raises:
            ManifestError: the override of a tensor does nothing.
            ModelError: nothing is quantized.
        """
        model = onnx.load(output, load_external_data=False)
        if not quantized_nodes(model):
            raise self._nothing_left(model)
        if self.settings.calibrated:
            self._refuse_idle(model, _tensors_of(prepared))

    def _config(self, prepared: Path, given: Mapping[str, Override] = {}) -> StaticQuantConfig:
        model = onnx.load(prepared, load_external_data=False)
        exclude = self._excluded(model)
        op_types: Sequence[str] = ()
        if self.settings.exclude_op_types:
            every = dict.fromkeys(node.op_type for node in model.graph.node)
            op_types = [each for each in every if each not in self.settings.exclude_op_types]
            op_types = op_types or [_NO_OP]
        tensors = set(_tensors(model.graph))
        overrides = {n: each for n, each in self.settings.overrides.items() if n in tensors}
        settings = replace(self.settings, overrides=overrides)
        fixed = {name: each for name, each in given.items() if name in tensors}
        with self._blamed("quantizing it"):
            return presets.config(
                prepared, settings, self.preset, exclude=exclude, op_types=op_types, fixed=fixed
            )

    def _refuse_others(self) -> None:
        model = onnx.load(self.plain, load_external_data=False)
        integer = next((node for node in model.graph.node if node.op_type in INTEGER_OPS), None)
        if integer is not None:
            raise self._no_float_model(
                "is quantized already", f"{protos.describe(integer)} is in it"
            )
        other = next((t for t in model.graph.initializer if t.data_type in _OTHER_FLOATS), None)
        if other is not None:
            kind = onnx.TensorProto.DataType.Name(other.data_type).lower()
            raise self._no_float_model(
                "is not a float32 model", f"its weight {other.name!r} is {kind}"
            )
        functions = {function.domain for function in model.functions}
        for node in protos.nodes(model):
            if node.domain not in functions and not registered(node.domain, node.op_type):
                raise self._no_float_model(
                    f"cannot be run to be quantized: {protos.describe(node)}",
                    f"onnxruntime has no operator {node.op_type} of domain {node.domain}",
                    "quantize it with a tool that has the operator, and give its output, "
                    "without `quantize`",
                )

    def _no_float_model(
        self,
        what: str,
        why: str,
        remedy: str = "give its float32 model, or remove `quantize` from its group",
    ) -> ModelError:
        return ModelError(what, model=self.name, why=why, remedy=remedy, code=Code.NOT_QUANTIZED)

    def _nothing_left(self, model: onnx.ModelProto) -> ModelError:
        what = "has nothing that these settings can quantize"
        if self.settings.exclude_nodes or self.settings.exclude_op_types:
            why = "`quantize.exclude` leaves no operator that can be quantized"
            return self._no_float_model(what, why, "exclude less, or remove `quantize`")
        kinds = ", ".join(sorted({node.op_type for node in model.graph.node})[:8])
        return self._no_float_model(what, f"onnxruntime quantizes none of its operators: {kinds}")

    def _refuse_few_values(self, model: onnx.ModelProto) -> None:
        """Refuse 4-bit weights of a MatMul for QNN: one scale leaves 16 values for all of them."""
        weights, blocks = self.settings.weights, self.settings.weight_only
        if self.preset != "qnn" or blocks is not None or weights not in ("int4", "uint4"):
            return
        constant = {tensor.name for tensor in model.graph.initializer}
        excluded = {*self._excluded(model), *self.settings.exclude_op_types}
        for node in model.graph.node:
            if node.op_type != "MatMul" or not constant.intersection(node.input):
                continue
            if excluded.isdisjoint((node.name, node.op_type)):
                raise ManifestError(
                    f"{weights} has too few values for {protos.describe(node)}",
                    model=self.name,
                    where="quantize.weights",
                    why="quantized for QNN, all weights of a MatMul have one scale",
                    remedy="give `weight_only: {bits: 4}` in the place of `weights`, or leave "
                    "MatMul out with `quantize.exclude`",
                    code=Code.WRONG_VALUE,
                )

    def _refuse_infinite(self, ranges: Ranges) -> None:
        wrong = ranges_.infinite(ranges)
        if wrong:
            raise ModelError(
                f"calibration finds values that are not finite, first in {wrong[0]!r}",
                model=self.name,
                why=f"{ranges[wrong[0]]}",
                remedy="correct the samples: the model gives infinities or NaN on them",
                code=Code.NOT_QUANTIZED,
            )

    def _refuse_idle(self, output: onnx.ModelProto, every: Iterable[str]) -> None:
        """Refuse an override of a tensor that has no range or type of its own in the output."""
        owners = ranges_.owners(output)
        place = {name: number for number, name in enumerate(every)}
        for name, override in self.settings.overrides.items():
            owner, kind = owners.get(name, ("", 0))
            wanted_type = (
                None if override.type is None else presets.TYPES[override.type].tensor_type
            )
            if owner == name or (
                kind == wanted_type and override.range is None is override.symmetric
            ):
                continue
            at, owned = (
                place[name],
                [each for each, (of, _) in owners.items() if each == of in place],
            )
            near = sorted((abs(place[each] - at), place[each] < at, each) for each in owned)
            listed = ", ".join(each for _, _, each in near[:_NEAR])
            raise ManifestError(
                f"the override of {name!r} does nothing",
                model=self.name,
                where="quantize.overrides",
                why=f"it has the range of {owner!r}" if owner else "it is fused away or float",
                remedy=f"name a tensor that has its own, the nearest first: {listed}",
                code=Code.NOTHING_EXCLUDED,
            )

    def _no_range(self, error: Exception, prepared: Path, ranges: Ranges) -> Exception:
        """Return an error about a tensor without a range if `error` names one; else `error`."""
        names = _tensors(_bare_graph(prepared))
        message = f" {error.args[0]}. "
        name = next((n for n in names if n not in ranges and f" {n}. " in message), None)
        if name is None:
            return error
        return ManifestError(
            f"its tensor {name!r} has no range",
            model=self.name,
            why="the ranges are those of another model, of other `exclude` or of an older epctx",
            remedy="restore the file of ranges, or run `epctx build --recalibrate`",
            code=Code.CALIBRATION,
        )

    def _excluded(self, model: onnx.ModelProto) -> list[str]:
        """Return the names of nodes that stay float."""
        names = [node.name for node in model.graph.node]
        return [n for p in self.settings.exclude_nodes for n in names if fnmatchcase(n, p)]

    def _refuse_unknown(self, wanted: Iterable[str], known: Iterable[str], key: str) -> None:
        every = list(known)
        for each in wanted:
            if each not in every:
                raise self._nothing(key, each, every)

    def _nothing(self, key: str, text: str, known: Sequence[str]) -> ManifestError:
        return ManifestError(
            f'"{text}" matches nothing in the model to quantize',
            model=self.name,
            where=f"quantize.{key}",
            remedy=did_you_mean(text, known),
            code=Code.NOTHING_EXCLUDED,
        )

    @contextmanager
    def _blamed(self, doing: str) -> Iterator[None]:
        """Turn any error of the tools into a ModelError; silence their advice, which does not apply
        here, and keep their temporary files in the model's folder.
        """
        logging.disable(logging.WARNING)
        before, tempfile.tempdir = tempfile.tempdir, str(self.plain.parent)
        try:
            yield
        except EpctxError:
            raise
        except Exception as error:
            raise ModelError(
                f"onnxruntime.quantization fails at {doing}",
                model=self.name,
                why=f"{type(error).__name__}: {error}",
                remedy="exclude the nodes that it names with `quantize.exclude`, or report it to "
                "onnxruntime",
                code=Code.NOT_QUANTIZED,
            ) from error
        finally:
            tempfile.tempdir = before
            logging.disable(logging.NOTSET)
            gc.collect()  # objects of the tools refer to each other, and to the model


def _quantize_static(prepared: Path, output: Path, config: StaticQuantConfig, cache: Path) -> None:
    quantize_static(
        prepared,
        output,
        None,
        quant_format=QuantFormat.QDQ,
        op_types_to_quantize=config.op_types_to_quantize,
        per_channel=config.per_channel,
        reduce_range=config.reduce_range,
        activation_type=config.activation_type,
        weight_type=config.weight_type,
        nodes_to_exclude=config.nodes_to_exclude,
        use_external_data_format=is_large(prepared),
        calibrate_method=CalibrationMethod.MinMax,
        extra_options=config.extra_options,
        calibration_cache_path=cache,
    )


def quantized_nodes(model: onnx.ModelProto) -> int:
    """Return the number of nodes with integer inputs or integer arithmetic."""
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


def is_large(model: Path) -> bool:
    """Tell whether a model of `Quantizer` has its weights in a file beside it."""
    return model.with_name(f"{model.name}.data").exists()


def _bare_graph(model: Path) -> onnx.GraphProto:
    return onnx.load(model, load_external_data=False).graph


def _tensors_of(pieces: Iterable[Path]) -> list[str]:
    return list(dict.fromkeys(name for piece in pieces for name in _tensors(_bare_graph(piece))))


def _tensors(graph: onnx.GraphProto) -> list[str]:
    names = dict.fromkeys(tensor.name for tensor in graph.initializer)
    names |= dict.fromkeys(value.name for value in graph.input)
    names |= dict.fromkeys(name for node in graph.node for name in node.output)
    return list(names)


def prepare(pieces: Sequence[Quantizer]) -> list[Path]:
    """Prepare the pieces of a model: fuse nodes, and write weights in blocks if the settings say
    so.

    Raises:
        ManifestError: a pattern, an op type or a tensor of the settings is not in the model.
        ModelError: it is not a float model, or onnxruntime's tools fail on it.
    """
    fused = [piece.fuse() for piece in pieces]
    pieces[0].require_known([path for path, _ in fused])
    finished = [piece.finish(*each) for piece, each in zip(pieces, fused, strict=True)]
    if pieces[0].settings.calibrated:
        pieces[0].require_tensors(finished)
    return finished


def move(prepared: Path, output: Path) -> None:
    """Write a prepared model as the output."""
    model = onnx.load(prepared)
    onnx.save(
        model, output, save_as_external_data=is_large(prepared), location=f"{output.name}.data"
    )
