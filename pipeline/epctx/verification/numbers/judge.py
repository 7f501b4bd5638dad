"""Judgement of outputs: compare each output, judge each comparison, sum up each model."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from msgspec.structs import replace

from epctx.files import hashing
from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider, Outcome
from epctx.verification.findings import (
    WRONG,
    Comparison,
    Finding,
    Inputs,
    OutputNumbers,
    Sessions,
)
from epctx.verification.numbers import compare, floats, scale, tolerances, unoptimized
from epctx.verification.numbers.floats import Fit
from epctx.verification.numbers.scale import Scale
from epctx.verification.numbers.tolerances import Precisions, of_output
from epctx.verification.numbers.unoptimized import Rerun

_QUANTIZED = (
    "give real inputs with `verify.inputs.files` (random ones may lie beyond what it was "
    "calibrated to), more samples with `quantize.calibration`; leave the nodes that lose most (the "
    "report has them; `epctx bisect` finds the first) out with `quantize.exclude`, or choose wider "
    "types; else set `quantize.tolerance`"
)
_SHARED = (
    "larger values share its quantization: leave the node that joins them (a Concat) out with "
    "`quantize.exclude`, make it an output of its own, or choose wider `quantize.activations`; "
    "else set `quantize.tolerance`"
)
_FEW = (
    "give more input sets with `verify.inputs` (slices of 16 values have scales of their own), or "
    "make them an output of their own"
)
_SMALL = (
    "give inputs on which they are larger with `verify.inputs`, or make them an output of their own"
)
TELLING = (
    "give inputs that reach its outputs with `verify.inputs`, or a smaller `verify.tolerance`; a "
    "model with real weights tells more than one with random ones"
)

Outputs = Mapping[str, Array]
"""A model's outputs, by name."""
_SOURCE: Final = "the source model"
_MOST: Final = 4
"""Number of slices that a message lists."""
LITTLE: Final = 0.05
"""An output is "not checkable" if a smaller share of its elements could have failed."""


@dataclass(kw_only=True)
class Judge:
    """Judges the outputs of one model, as one kind of sessions computed them.

    Attributes:
        file: the EPContext model.
        sessions: origin of the judged outputs.
        providers: the EPs of the model.
        precision: precision of all outputs, or of each.
        asked: the manifest's limits.
        idle: outputs that no input changes: a failure counts, but a pass proves nothing.
        probabilities: outputs that have a floor by default (`numbers.probabilities`).
        random: outputs without a right value; they are not compared.
        inner: values inside the model. Their hidden slices (`scale`) are not judged: an EP may give
            zeros for a negligible channel, and the outputs show whether that matters.
        right: origin of the right outputs.
        variant: the device that the sessions were made for, if the model is for several.
        when: the run or the piece of the model that gave the outputs; empty for the first run of
            the whole model.
        known: all right outputs that are known, by the label of the input set. They determine the
            scale of an output.
        rerun: runs the model of the right outputs again; None if there is none to run.
        reference: another judge of the same outputs, with its right outputs by the label of the
            input set.
        inputs: origin of the inputs.
    """

    file: str
    sessions: Sessions
    providers: Sequence[ExecutionProvider]
    precision: Precisions
    asked: Tolerance
    probabilities: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    random: frozenset[str] = frozenset()
    inner: frozenset[str] = frozenset()
    right: str = _SOURCE
    variant: str = ""
    when: str = ""
    known: Mapping[str, Mapping[str, Array]] = field(default_factory=dict)
    rerun: Rerun | None = None
    reference: tuple[Judge, Mapping[str, Mapping[str, Array]]] | None = None
    inputs: Inputs = "generated"
    _judged: list[OutputNumbers] = field(default_factory=list, init=False)
    _explained: set[tuple[str, tuple[int, ...]]] = field(default_factory=set, init=False)
    _fits: dict[str, dict[tuple[int, int], Fit]] = field(default_factory=dict, init=False)
    _scales: dict[str, dict[tuple[int, ...], Scale]] = field(default_factory=dict, init=False)

    def judge(
        self, label: str, expected: Mapping[str, Array], actual: Mapping[str, Array]
    ) -> Iterator[Finding | OutputNumbers]:
        """Judge one input set: yield numbers for each output, and a finding for each beyond its
        limits.
        """
        if self.reference is not None:
            judge, outputs = self.reference
            yield from judge.judge(label, outputs[label], actual)
        case_label, expected = label, dict(expected)
        if self.rerun is not None and self.rerun.held:
            other = self.rerun.unoptimized(label)
            expected |= {name: other[name] for name in self.rerun.held if name in other}
        label = ", ".join(filter(None, (label, self.variant, self.when)))
        for name in sorted(actual.keys() - expected.keys()):
            yield self._finding("fail", f"{label}: output '{name}' is unexpected", WRONG)
        names = [name for name in expected if name not in self.random]
        limits = {name: self.limits(name, str(expected[name].dtype)) for name in names}
        compared = hashing.of_each(
            lambda name: compare.compare(
                expected[name],
                actual[name],
                limits[name],
                self._scale(name, expected[name], limits[name]),
            ),
            [name for name in names if name in actual],
            size=sum(array.nbytes for array in actual.values()),
        )
        for name in names:
            if name not in actual:
                yield self._finding("fail", f"{label}: output '{name}' is missing", WRONG)
                continue
            comparison, allowed = compared[name], limits[name]
            excess, own = compare.excess(comparison, allowed), self._own(name, comparison)
            if excess is not None:
                measured = self._scale(name, expected[name], allowed, failed=bool(own))
                yield from self._hold(case_label, name, expected, allowed, measured)
                comparison = compare.compare(expected[name], actual[name], allowed, measured)
                excess = compare.excess(comparison, allowed)
            numbers = OutputNumbers(
                model=self.file,
                output=name,
                input_set=label,
                inputs=self.inputs,
                sessions=self.sessions,
                right=self.right,
                comparison=comparison,
                tolerance=allowed,
                passed=excess is None,
            )
            self._judged.append(numbers)
            self._add_fits(name, expected[name], actual[name], allowed)
            yield numbers
            if excess is not None:
                own = self._own(name, comparison)
                message = f"{label}: output '{name}': {excess}{_worst(comparison)}{own}"
                remedy = _QUANTIZED if self.sessions == "quantized" else WRONG
                if own and self.sessions == "quantized":
                    remedy = _SHARED
                yield self._finding("fail", message, remedy)

    def _scale(
        self, name: str, right: Array, allowed: Tolerance, *, failed: bool = False
    ) -> Scale | None:
        """Return the scale of a floating-point output, over the input sets that give this shape.

        Args:
            failed: the comparison has failed with this scale. Rounding may explain hidden slices.
        """
        if not compare.is_floating(str(right.dtype)) or not right.size:
            return None
        key, scales = (name, right.shape), self._scales.setdefault(name, {})
        if right.shape not in scales or (failed and key not in self._explained):
            sets = {
                label: outputs[name] for label, outputs in self.known.items() if name in outputs
            }
            alike = {
                n: y for n, y in sets.items() if (y.shape, y.dtype) == (right.shape, right.dtype)
            }
            noise, rounded = tolerances.unit(of_output(name, self.precision), allowed), []
            if self.rerun is not None and failed:
                self._explained.add(key)
                others = (self.rerun.rounded(label, noise) for label in alike)
                rounded = [outputs[name] for outputs in others if name in outputs]
            rights = list(alike.values()) or [right]
            blind = self.rerun is None or (failed and len(rounded) < len(rights))
            noise = 2 * noise if blind else 0.0
            allowed = replace(allowed, max_rel=0.0) if name in self.inner else allowed
            scales[right.shape] = scale.measure(rights, allowed, noise=noise, rounded=rounded)
        return scales[right.shape]

    def _add_fits(self, name: str, expected: Array, actual: Array, allowed: Tolerance) -> None:
        """Add an input set to the sums of the slices that have scales of their own."""
        measured = self._scales.get(name, {}).get(expected.shape)
        if measured is None or actual.shape != expected.shape:
            return
        fits = self._fits.setdefault(name, {})
        for axis, index, fit in floats.fits(expected, actual, measured, allowed.floor or 0.0):
            fits[axis, index] = fits.get((axis, index), Fit()) + fit

    def _own(self, name: str, comparison: Comparison) -> str:
        """Return words for the scale of the worst element, if it is not the output's."""
        measured = self._scales.get(name, {}).get(comparison.shape)
        return measured.own(comparison.worst.index) if measured and comparison.worst else ""

    def differ(self, name: str, right: Outputs, *others: Outputs) -> bool:
        """Return whether each of several outputs differs from the right one by more than its limits
        allow.
        """
        allowed = self.limits(name, str(right[name].dtype))
        measured = self._scale(name, right[name], allowed)
        each = (compare.compare(right[name], other[name], allowed, measured) for other in others)
        return all(compare.excess(comparison, allowed) is not None for comparison in each)

    def limits(self, name: str, dtype: str) -> Tolerance:
        """Return the limits of an output, by its name and type."""
        return tolerances.limits(
            self.providers,
            of_output(name, self.precision),
            dtype,
            self.asked,
            probability=name in self.probabilities,
        )

    def _hold(
        self,
        label: str,
        name: str,
        expected: dict[str, Array],
        allowed: Tolerance,
        measured: Scale | None,
    ) -> Iterator[Finding]:
        """Compare an output that exceeds its limits with the output of the kernels from now on, if
        ONNX Runtime's two answers differ by more than these limits, too.
        """
        if self.rerun is None or name in self.rerun.held:
            return
        other = self.rerun.unoptimized(label).get(name, expected[name])
        apart = compare.compare(other, expected[name], allowed, measured)
        difference = compare.excess(apart, allowed)
        if difference is not None:
            if not self.rerun.held:
                where = ", ".join(filter(None, (label, self.when)))
                yield unoptimized.two_answers(self.file, where, f"output '{name}': {difference}")
            self.rerun.held.add(name)
            expected[name] = other

    def summary(self) -> Iterator[Finding]:
        """Sum up after the last input set: yield findings for outputs that passed or were not
        checkable.
        """
        if self.reference is not None:
            yield from self.reference[0].summary()
        if not self._judged:
            return
        outputs: dict[str, list[Comparison]] = {}
        for numbers in self._judged:
            outputs.setdefault(numbers.output, []).append(numbers.comparison)
        for name in {name.rpartition("[")[0] for name in outputs if name[-2:] != "[]"}:
            outputs.pop(f"{name}[]", None)  # empty on one input set only
        telling = {}
        together: list[Finding] = []
        failed = {numbers.output for numbers in self._judged if not numbers.passed}
        for name, comparisons in outputs.items():
            if any(comparison.problem is not None for comparison in comparisons):
                continue
            yield from self._hidden(name)
            if name not in failed:
                together += self._together(name, comparisons)
            most = max(comparisons, key=lambda comparison: comparison.checkable)
            if most.checkable >= LITTLE:
                telling[name] = comparisons
                yield from self._non_finite(name, comparisons)
            elif name not in self.idle or most.nan or most.infinite:
                yield self._finding("not checkable", f"output '{name}': {_why(most)}", TELLING)
        yield from together
        if not failed and not any(each.outcome == "fail" for each in together):
            yield from self._agreement(
                {
                    name: comparisons
                    for name, comparisons in telling.items()
                    if name not in self.idle
                }
            )

    def _agreement(self, outputs: Mapping[str, Sequence[Comparison]]) -> Iterator[Finding]:
        """Yield the finding about outputs that could have failed and did not."""
        if not outputs:
            return
        sets = len({numbers.input_set for numbers in self._judged})
        words = [
            f"{len(outputs)} output{'s' * (len(outputs) != 1)} on {sets} input "
            f"set{'s' * (sets != 1)} {self._who} agree with {self.right}, on {self.inputs} inputs"
        ]
        comparisons = [comparison for several in outputs.values() for comparison in several]
        if all(comparison.equal for comparison in comparisons):
            words.append("all values equal")
        else:
            largest = max((c.max_rel for c in comparisons if c.max_rel is not None), default=None)
            cosine = min((c.cosine for c in comparisons if c.cosine is not None), default=None)
            sqnr = min((c.sqnr for c in comparisons if c.sqnr is not None), default=None)
            words += [] if largest is None else [f"largest relative error {largest:.2e}"]
            words += [] if cosine is None else [f"least cosine {cosine:.9f}"]
            words += [] if sqnr is None else [f"least SQNR {sqnr:.1f} dB"]
        yield self._finding("pass", ", ".join(words))

    def _hidden(self, name: str) -> Iterator[Finding]:
        """Yield findings about the slices of an output that no comparison can check."""
        for measured in self._scales.get(name, {}).values():
            for hidden in measured.hidden:
                if not hidden.unjudged:
                    continue
                few = hidden.values < scale.LEAST_VALUES
                each = "value each" if hidden.values == 1 else "values each"
                why = f"with {hidden.values} {each}" if few else "as noise is"
                message = (
                    f"output '{name}': beside {measured.largest:.3g} the tolerance cannot tell "
                    f"small slices of axis {hidden.axis}, {why}: {_listed(hidden.unjudged)}"
                )
                yield self._finding("not checkable", message, _FEW if few else _SMALL)

    def _together(self, name: str, comparisons: Sequence[Comparison]) -> Iterator[Finding]:
        """Judge an output, and its slices that have scales of their own, over all input sets.

        Without a limit for the gain, as for a quantized model, the gain is reported and not judged.
        """
        allowed, power = (
            self.limits(name, comparisons[0].dtype),
            sum(each.power for each in comparisons),
        )
        wrong = max((each.max_abs or 0.0) for each in comparisons) > (allowed.floor or 0.0)
        weighted = sum((each.gain or 0.0) * each.power for each in comparisons)
        gain = weighted / power if wrong and power else 1.0
        if allowed.gain_max is None:
            if abs(gain - 1) > tolerances.GAIN:
                words = f"over all input sets it is {gain:.4g} times what is right"
                message = f"output '{name}': {words}: quantization can cause that"
                yield Finding("numbers", "gain", self.file, "pass", message)
            return
        error = sum((each.mean_abs or 0.0) for each in comparisons) / len(comparisons)
        largest = max((each.scale or 0.0) for each in comparisons)
        yield from self._fit(f"output '{name}'", gain, 1.0, error, largest, allowed)
        for (axis, index), fit in self._fits.get(name, {}).items():
            if fit.power:
                cosine = (
                    fit.dot / math.sqrt(fit.power * fit.actual_power) if fit.actual_power else 0.0
                )
                what = f"output '{name}', slice {index} of axis {axis}"
                fitted = fit.dot / fit.power, cosine, fit.error / fit.count, fit.largest
                yield from self._fit(what, *fitted, allowed)

    def _fit(
        self,
        what: str,
        gain: float,
        cosine: float,
        error: float,
        largest: float,
        allowed: Tolerance,
    ) -> Iterator[Finding]:
        """Judge sums over all input sets. `error`: the mean; `largest`: largest right magnitude."""
        excesses = []
        if allowed.gain_max is not None and abs(gain - 1) > allowed.gain_max:
            words = f"over all input sets it is {gain:.4g} times what is right"
            excesses.append(f"{words} (gain_max {allowed.gain_max:g})")
        if allowed.cosine_min is not None and cosine < allowed.cosine_min:
            excesses.append(f"cosine {cosine:.6g} < {allowed.cosine_min:g} over all input sets")
        if allowed.floor and largest <= 1 + scale.SUM and error > allowed.floor:
            excesses.append(f"mean error of probabilities {error:.3g} > {allowed.floor:g} (floor)")
        if excesses:
            yield self._finding("fail", f"{what}: {'; '.join(excesses)}", WRONG)

    def _non_finite(self, name: str, comparisons: Sequence[Comparison]) -> Iterator[Finding]:
        words = _shares(
            max(comparisons, key=lambda comparison: comparison.nan + comparison.infinite)
        )
        if words:
            message = (
                f"output '{name}': {words} in {self.right} too: only their positions are compared"
            )
            yield Finding("numbers", "nonfinite", self.file, "not checkable", message, TELLING)

    @property
    def _who(self) -> str:
        if self.sessions == "pieces":
            return f"of {self.when} by itself"
        alone = f" for {self.variant} alone" if self.variant else ""
        return f"{_WHO[self.sessions]}{alone}"

    def _finding(self, outcome: Outcome, message: str, remedy: str = "") -> Finding:
        against = "" if self.right == _SOURCE else f", against {self.right}"
        text = message if outcome == "pass" else f"{message} ({self._who}{against})"
        return Finding("numbers", "outputs", self.file, outcome, text, remedy)


def _why(comparison: Comparison) -> str:
    """Return why a comparison tells little."""
    size = math.prod(comparison.shape)
    if not size:
        return "it is empty"
    share = f"{comparison.checkable:.2%} of its elements could have failed"
    broken = _shares(comparison)
    return f"{broken}; {share}" if broken else share


def _shares(comparison: Comparison) -> str:
    size = math.prod(comparison.shape)
    counts = ((comparison.nan, "NaN"), (comparison.infinite, "infinite"))
    return ", ".join(f"{100 * count / size:.3g} % {word}" for count, word in counts if count)


_WHO: dict[Sessions, str] = {
    "generating": "of the generating sessions",
    "files": "of the files",
    "chain": "of the pieces one after the other",
    "quantized": "of the quantized model",
    "device": "of the device",
}


def _listed(slices: Mapping[int, float]) -> str:
    """List the first slices, with their largest magnitudes: `3 (0.001), 5 (0.2) and 7 more`."""
    words = [f"{index} ({most:.3g})" for index, most in islice(slices.items(), _MOST)]
    remaining = len(slices) - _MOST
    return ", ".join(words) + (f" and {remaining} more" if remaining > 0 else "")


def _worst(comparison: Comparison) -> str:
    if comparison.worst is None:
        return ""
    at = list(comparison.worst.index)
    return f"; worst at {at}: {comparison.worst.actual}, should be {comparison.worst.expected}"


def constant(results: Sequence[Outputs]) -> frozenset[str]:
    """Return the names of outputs that are the same on all of several input sets."""
    first, *others = results
    return frozenset(
        name
        for name, value in first.items()
        if others and all(name in each and _equal(value, each[name]) for each in others)
    )


def _equal(one: Array, other: Array) -> bool:
    same = np.array_equal(one, other, equal_nan=one.dtype.kind in "fc")
    return one.dtype == other.dtype and same
