"""Sources to which ONNX Runtime gives two answers, with and without its optimizations.

A stock session folds constants and shapes before it runs anything. If onnx infers another shape
than the kernels make (`graph.prepare.arguments`), the session computes other values than the
kernels. A comparison with the stock session alone would not notice that optimize makes the same
mistake. So if the session folds anything that may be wrong, the source also runs on one input set
at ORT_DISABLE_ALL. Other sources do so only if an output of the files exceeds its limits.

ORT_DISABLE_ALL is not always used: without fusions a ShuffleNet differs by 3.6e-6 of the largest
magnitude and a ResNet-50 by 6e-5, and a ShuffleNet of 5 MB takes 170 ms more (onnxruntime 1.31.1,
two cores). A product with a weight that is dequantized in blocks differs by 0.05: the optimized one
is computed in 8-bit integers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
import onnx
from msgspec import Struct, field

from epctx.errors import ModelError
from epctx.graph import numerics
from epctx.graph.inputs import Array
from epctx.graph.serde import protos
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelSource, Tolerance
from epctx.verification.findings import Finding
from epctx.verification.numbers import compare, scale, sessions
from epctx.verification.numbers.compare import is_floating
from epctx.verification.numbers.input_sets import Case

_PLAIN: Final = frozenset(
    {
        "Cast",
        "Constant",
        "ConstantOfShape",
        "DequantizeLinear",
        "Identity",
        "QuantizeLinear",
        "Reshape",
        "Transpose",
        "Unsqueeze",
    }
)
"""Ops that exporters apply to weights, and that every implementation folds alike."""

REMEDY: Final = (
    "rewrite the source so that every implementation computes the same: see onnxruntime's warnings "
    "when it loads it. Frequent causes are a backward `Slice` to the largest integer, where -2**63 "
    "is meant, and a declared shape that is not the computed one. If fused kernels only round "
    "differently, set `verify.tolerance` to the difference of the answers"
)
_OF_SHAPES: Final = ("Shape", "Size")
"""Ops that are folded if a shape is known, although their input is not constant."""


def folds(model: onnx.ModelProto) -> bool:
    """Return whether ONNX Runtime folds values that its kernels may compute differently."""
    if numerics.dequantizes_in_blocks(model):
        return False  # then the answers differ for other reasons
    return any(_folds(graph, frozenset()) for graph in (model.graph, *model.functions))


def _folds(graph: onnx.GraphProto | onnx.FunctionProto, outer: frozenset[str]) -> bool:
    constant = set(outer)
    if isinstance(graph, onnx.GraphProto):
        constant |= {tensor.name for tensor in graph.initializer}
        constant -= {value.name for value in graph.input}
    for node in graph.node:
        if not node.domain and node.op_type in _OF_SHAPES:
            return True
        bodies = tuple(protos.subgraphs(node))
        if not bodies and all(name in constant for name in node.input if name):
            if node.input and node.op_type not in _PLAIN:
                return True
            constant.update(node.output)
        if any(_folds(body, frozenset(constant)) for body in bodies):
            return True
    return False


def difference(
    stock: Mapping[str, Array],
    unoptimized: Mapping[str, Array],
    limits: Callable[[str, str], Tolerance],
) -> str | None:
    """Describe the first output in which two answers differ by more than its limits; None if none.

    Args:
        limits: returns the limits of an output, by name and type.
    """
    for name, right in unoptimized.items():
        if name not in stock:
            return f"one of them has no output '{name}'"
        dtype = str(right.dtype)
        allowed = limits(name, dtype)
        whole = scale.measure([right], Tolerance()) if compare.is_floating(dtype) else None
        excess = compare.excess(compare.compare(right, stock[name], allowed, whole), allowed)
        if excess is not None:
            return f"output '{name}': {excess}"
    return None


def needed(source: ModelSource, error: Exception) -> ModelError:
    """Return the error of a source that does not run without ONNX Runtime's optimizations."""
    return ModelError(
        "the source model runs only with ONNX Runtime's optimizations",
        file=str(source.path),
        model=source.name,
        why=f"at ORT_DISABLE_ALL: {sessions.words(error)}",
        remedy="export the model again, or correct it: its own nodes do not run",
    )


def two_answers(file: str, label: str, difference: str) -> Finding:
    """Return the finding that the files of a model are compared with the kernels' answer."""
    message = (
        f"ONNX Runtime gives its source two answers; {label}, a stock session against one at "
        f"ORT_DISABLE_ALL: {difference}. The files are compared with the latter"
    )
    return Finding("numbers", "source", file, "not checkable", message, REMEDY)


class Rerun(Struct):
    """Second run of a model on an input set where a comparison has failed; no outputs if it fails.

    Attributes:
        compute: runs the model on inputs, in a stock session or, if False, its own kernels.
        cases: its input sets, by label.
        held: outputs that are compared with those of its kernels.
    """

    compute: Callable[[Feeds, bool], Mapping[str, Array]]
    cases: dict[str, Case]
    held: set[str] = field(default_factory=set)
    _answers: dict[str, Mapping[str, Array]] = field(default_factory=dict)

    def unoptimized(self, label: str) -> Mapping[str, Array]:
        """Return the outputs of its kernels."""
        if label not in self._answers:
            self._answers[label] = self._run(self.cases[label].feeds, False)
        return self._answers[label]

    def rounded(self, label: str, unit: float) -> Mapping[str, Array]:
        """Return the outputs for `perturbed` inputs; nothing if no input is floating-point."""
        feeds = self.cases[label].feeds
        if not any(is_floating(str(each.dtype)) for each in feeds.values()):
            return {}
        return self._run(perturbed(feeds, unit), True)

    def _run(self, feeds: Feeds, optimized: bool) -> Mapping[str, Array]:
        try:
            return self.compute(feeds, optimized)
        except Exception:  # onnxruntime's errors have no common class
            return {}


def perturbed(feeds: Feeds, unit: float) -> Feeds:
    """Return inputs with each float changed by the share `unit` of itself, up or down."""
    rng = np.random.default_rng(0)
    changed = {}
    for name, each in feeds.items():
        signs = rng.choice((-1.0, 1.0), size=each.shape)
        floating = is_floating(str(each.dtype))
        changed[name] = (
            (each.astype(np.float64) * (1 + unit * signs)).astype(each.dtype) if floating else each
        )
    return changed
