"""From outputs to findings: each output compared, each comparison judged, each model summed up."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from epctx.files import hashing
from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider
from epctx.providers.hooks import Outcome, Precision
from epctx.verification.findings import Comparison, Finding, OutputNumbers, Sessions
from epctx.verification.numbers import compare, tolerances

_REMEDY = (
    "if the EP's precision explains it, set `verify.tolerance`; else find the first wrong node, "
    "and what repairs it, with `epctx bisect MANIFEST GROUP MODEL`"
)


_QUANTIZED = (
    "give real inputs with `verify.inputs.files` (random ones may lie beyond what it was "
    "calibrated to), more samples with `quantize.calibration`; leave the nodes that lose most (the "
    "report has them; `epctx bisect` finds the first) out with `quantize.exclude`, or choose wider "
    "types; else set `quantize.tolerance`"
)
_TELLING = (
    "give inputs that reach its outputs with `verify.inputs`, or a smaller `verify.tolerance`; a "
    "model with real weights tells more than one with random ones"
)

_SOURCE: Final = "the source model"
LITTLE: Final = 0.05
"""An output of which a smaller share could have failed is "not checkable"."""


@dataclass(kw_only=True)
class Judge:
    """Judges the outputs of one model, as one kind of sessions computed them.

    Attributes:
        file: the EPContext model.
        sessions: who computed what is judged.
        providers: the EPs of the model.
        asked: the manifest's limits.
        idle: outputs that can be wrong, but whose being right says nothing.
        random: outputs that nothing is right for; they are not compared.
        right: who computed what is right.
        variant: the device that the sessions were made for, where the model is for several.
        reference: judges the same outputs by those of another model, by the label of the input set.
    """

    file: str
    sessions: Sessions
    providers: Sequence[ExecutionProvider]
    precision: Precision
    asked: Tolerance
    idle: frozenset[str] = frozenset()
    random: frozenset[str] = frozenset()
    right: str = _SOURCE
    variant: str = ""
    reference: tuple[Judge, Mapping[str, Mapping[str, Array]]] | None = None
    _judged: list[OutputNumbers] = field(default_factory=list, init=False)

    def judge(
        self, label: str, expected: Mapping[str, Array], actual: Mapping[str, Array]
    ) -> Iterator[Finding | OutputNumbers]:
        """One input set: numbers for each output, and a finding for each that is out of limits."""
        if self.reference is not None:
            judge, outputs = self.reference
            yield from judge.judge(label, outputs[label], actual)
        if self.variant:
            label = f"{label}, {self.variant}"
        for name in sorted(actual.keys() - expected.keys()):
            yield self._finding("fail", f"{label}: output '{name}' is one too many", _REMEDY)
        names = [name for name in expected if name not in self.random]
        limits = {name: self._limits(expected[name]) for name in names}
        compared = hashing.of_each(
            lambda name: compare.compare(expected[name], actual[name], limits[name]),
            [name for name in names if name in actual],
            size=sum(array.nbytes for array in actual.values()),
        )
        for name in names:
            if name not in actual:
                yield self._finding("fail", f"{label}: output '{name}' is missing", _REMEDY)
                continue
            found, allowed = compared[name], limits[name]
            excess = compare.excess(found, allowed)
            numbers = OutputNumbers(
                model=self.file,
                output=name,
                input_set=label,
                sessions=self.sessions,
                right=self.right,
                comparison=found,
                tolerance=allowed,
                passed=excess is None,
            )
            self._judged.append(numbers)
            yield numbers
            if excess is not None:
                message = f"{label}: output '{name}': {excess}{_worst(found)}"
                remedy = _QUANTIZED if self.sessions == "quantized" else _REMEDY
                yield self._finding("fail", message, remedy)

    def _limits(self, right: Array) -> Tolerance:
        return tolerances.limits(self.providers, self.precision, str(right.dtype), self.asked)

    def summary(self) -> Iterator[Finding]:
        """After the last input set: what has passed, and what a comparison could not tell."""
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
        for name, found in outputs.items():
            if any(comparison.problem is not None for comparison in found):
                continue
            most = max(found, key=lambda comparison: comparison.checkable)
            if most.checkable >= LITTLE:
                telling[name] = found
                yield from self._non_finite(name, found)
            elif name not in self.idle or most.nan or most.infinite:
                yield self._finding("not checkable", f"output '{name}': {_why(most)}", _TELLING)
        if all(numbers.passed for numbers in self._judged):
            yield from self._agreement(
                {name: found for name, found in telling.items() if name not in self.idle}
            )

    def _agreement(self, outputs: Mapping[str, Sequence[Comparison]]) -> Iterator[Finding]:
        """The outputs that could have failed and did not."""
        if not outputs:
            return
        sets = len({numbers.input_set for numbers in self._judged})
        words = [
            f"{len(outputs)} output{'s' * (len(outputs) != 1)} on {sets} input "
            f"set{'s' * (sets != 1)} {self._who} agree with {self.right}"
        ]
        comparisons = [comparison for found in outputs.values() for comparison in found]
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

    def _non_finite(self, name: str, found: Sequence[Comparison]) -> Iterator[Finding]:
        words = _shares(max(found, key=lambda comparison: comparison.nan + comparison.infinite))
        if words:
            message = f"output '{name}': {words} in {self.right} too: only their places are held"
            yield Finding("numbers", "nonfinite", self.file, "not checkable", message, _TELLING)

    @property
    def _who(self) -> str:
        alone = f" for {self.variant} alone" if self.variant else ""
        return f"{_WHO[self.sessions]}{alone}"

    def _finding(self, outcome: Outcome, message: str, remedy: str = "") -> Finding:
        against = "" if self.right == _SOURCE else f", against {self.right}"
        told = message if outcome == "pass" else f"{message} ({self._who}{against})"
        return Finding("numbers", "outputs", self.file, outcome, told, remedy)


def _why(found: Comparison) -> str:
    """Why a comparison tells little."""
    size = math.prod(found.shape)
    if not size:
        return "it is empty"
    share = f"{found.checkable:.2%} of its elements could have failed"
    broken = _shares(found)
    return f"{broken}; {share}" if broken else share


def _shares(found: Comparison) -> str:
    size = math.prod(found.shape)
    counts = ((found.nan, "NaN"), (found.infinite, "infinite"))
    return ", ".join(f"{100 * count / size:.3g} % {word}" for count, word in counts if count)


_WHO: dict[Sessions, str] = {
    "generating": "of the generating sessions",
    "files": "of the files",
    "quantized": "of the quantized model",
    "device": "of the device",
}


def _worst(found: Comparison) -> str:
    if found.worst is None:
        return ""
    at = list(found.worst.index)
    return f"; worst at {at}: {found.worst.actual}, should be {found.worst.expected}"
