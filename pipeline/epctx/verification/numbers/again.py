"""Running a model once more on an input set, where a comparison with its outputs has failed."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from msgspec import Struct, field

from epctx.graph.inputs import Array
from epctx.inference.feeds import Feeds
from epctx.verification.numbers.compare import is_floating
from epctx.verification.numbers.input_sets import Case


class Again(Struct):
    """Runs a model once more, by the label of the input set. It returns nothing if that fails.

    Attributes:
        compute: runs the model on inputs, in a stock session or, if False, its own kernels.
        cases: its input sets, by label.
        held: outputs that are judged by what its kernels compute.
    """

    compute: Callable[[Feeds, bool], Mapping[str, Array]]
    cases: dict[str, Case]
    held: set[str] = field(default_factory=set)
    _answers: dict[str, Mapping[str, Array]] = field(default_factory=dict)

    def unoptimized(self, label: str) -> Mapping[str, Array]:
        """Return what its kernels compute."""
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
    """Return inputs of which each float is off by `unit` of itself, up or down."""
    rng = np.random.default_rng(0)
    found = {}
    for name, each in feeds.items():
        signs = rng.choice((-1.0, 1.0), size=each.shape)
        floating = is_floating(str(each.dtype))
        found[name] = (
            (each.astype(np.float64) * (1 + unit * signs)).astype(each.dtype) if floating else each
        )
    return found
