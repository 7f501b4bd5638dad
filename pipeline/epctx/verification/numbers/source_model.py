"""Summaries of source models, read without weights, and a check of their outputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from msgspec import Struct
from msgspec.structs import replace

from epctx.errors import ModelError
from epctx.graph import inputs as graph_inputs
from epctx.graph import numerics
from epctx.graph.decisions import Program
from epctx.graph.inputs import Array, InputSpec
from epctx.graph.prepare import functions
from epctx.graph.serde import reader
from epctx.manifest import ModelSource, VerifySettings
from epctx.providers.base import Precision
from epctx.verification.folder import ContextModel
from epctx.verification.numbers import unoptimized
from epctx.verification.numbers.tolerances import precisions, probability_outputs


class SourceModel(Struct, frozen=True, kw_only=True):
    """Summary of a source model.

    Attributes:
        inputs: inputs of a run, in order.
        outputs: names of its outputs, in order.
        precision: precision of each output.
        probabilities: outputs that end in a Sigmoid or Softmax (`numbers.probabilities`).
        may_draw: the model may draw random numbers, and give other outputs in each run.
        folds: ONNX Runtime may compute it differently than its kernels (`unoptimized.folds`).
        prepacks: its numbers may depend on how a session lays out weights (`graph.prepacking`).
    """

    source: ModelSource
    inputs: tuple[InputSpec, ...]
    outputs: tuple[str, ...]
    precision: Mapping[str, Precision]
    probabilities: frozenset[str] = frozenset()
    may_draw: bool = False
    folds: bool = False
    prepacks: bool = True

    @classmethod
    def read(cls, source: ModelSource) -> SourceModel:
        """Summarize a source model. Raises ModelError."""
        model = reader.read(source.path)
        return cls(
            source=source,
            inputs=_specs(source, model),
            outputs=tuple(info.name for info in model.graph.output),
            precision=precisions(model),
            probabilities=probability_outputs(model),
            may_draw=numerics.may_draw(model),
            folds=unoptimized.folds(model),
            prepacks=numerics.depends_on_prepacking(model),
        )

    def interface_faults(self, model: ContextModel) -> list[str]:
        """Return how the EPContext model's inputs and outputs differ from those of its source."""
        faults = []
        for direction, own, other in (
            ("inputs", [i.name for i in self.inputs], [i.name for i in model.inputs]),
            ("outputs", list(self.outputs), list(model.outputs)),
        ):
            if own != other:
                faults.append(f"its {direction} are {other}, those of the source model {own}")
        shapes = {spec.name: spec.shape for spec in model.inputs}
        for spec in (replace(each, shape=_fixed(each, self.source)) for each in self.inputs):
            pairs = zip(spec.shape, shapes.get(spec.name, ()), strict=False)
            if any(_are_others(*pair) for pair in pairs):
                faults.append(
                    f"its input '{spec.name}' is of shape {list(shapes[spec.name])}, the source "
                    f"model's of {list(spec.shape)}"
                )
        kinds = {spec.name: spec.kind for spec in model.inputs}
        for spec in self.inputs:
            if kinds.get(spec.name, spec.kind) != spec.kind:
                faults.append(
                    f"its input '{spec.name}' is {kinds[spec.name]}, the source model's {spec.kind}"
                )
        return faults

    def sizing(self, output: str) -> Sequence[str]:
        """Return the inputs whose values determine the shape of an output. Raises ModelError."""
        path = self.source.path
        return Program(functions.inlined(reader.read(path), where=str(path))).sizing(output)

    def fixed_inputs(self, model: ContextModel) -> tuple[InputSpec, ...]:
        """Return the EPContext model's inputs, with fixed shapes, and the hints of the source."""
        hints = {spec.name: spec.hint for spec in self.inputs}
        return tuple(replace(spec, hint=hints.get(spec.name)) for spec in model.inputs)


def inputs(source: ModelSource) -> tuple[InputSpec, ...]:
    """Return a source's inputs with fixed `dimensions` and `shapes`; none if it is unreadable."""
    try:
        specs = _specs(source, reader.read(source.path))
    except ModelError:
        return ()
    return tuple(replace(spec, shape=_fixed(spec, source)) for spec in specs)


def _specs(source: ModelSource, model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """Return a model's inputs. If this build has quantized the model, the hints are those of the
    float model: the quantized scales come from samples, which need not fill them evenly.
    """
    specs, other = graph_inputs.specs(model), source.reference
    if other is None or not other.of_source:
        return specs
    hints = {spec.name: spec.hint for spec in graph_inputs.specs(reader.read(other.path))}
    return tuple(replace(spec, hint=hints.get(spec.name)) for spec in specs)


def _are_others(one: graph_inputs.Dim, other: graph_inputs.Dim) -> bool:
    return isinstance(one, int) and isinstance(other, int) and one != other


def _fixed(spec: InputSpec, source: ModelSource) -> tuple[graph_inputs.Dim, ...]:
    if spec.name in source.shapes:
        return source.shapes[spec.name]
    return tuple(
        source.dimensions.get(dim, dim) if isinstance(dim, str) else dim for dim in spec.shape
    )


def refuse_nonfinite(
    source: ModelSource, settings: VerifySettings, label: str, outputs: Mapping[str, Array]
) -> None:
    """Refuse a source model that computes NaN or infinities on a user's own inputs.

    On generated inputs this is not a fault, since the model may not be made for such inputs.

    Raises:
        ModelError: an output has NaN or infinities on inputs that were read from a file.
    """
    if not settings.inputs.files or settings.allow_nonfinite:
        return
    for name, output in outputs.items():
        if output.dtype.kind in "OUSbiu":
            continue
        nan = int(np.count_nonzero(np.isnan(output)))
        infinite = int(np.count_nonzero(np.isinf(output)))
        if nan or infinite:
            raise ModelError(
                f"computes {nan} NaN and {infinite} infinite of {output.size} elements in its "
                f"output '{name}'",
                file=str(source.path),
                why=f"on the inputs of {label}, on ONNX Runtime's CPU EP",
                remedy="give inputs that the model is made for; docs/numbers.md says how to "
                "declare intended values, as in masks",
            )
