"""From outputs to findings: each output compared, each comparison judged, each model summed up."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from epctx.graph.inputs import Array
from epctx.manifest import Tolerance
from epctx.providers.base import ExecutionProvider
from epctx.providers.hooks import Outcome, Precision
from epctx.verification.findings import Comparison, Finding, OutputNumbers, Sessions
from epctx.verification.numbers import compare, tolerances

_REMEDY = (
    "if the EP's precision explains it, set `verify.tolerance`; else find the nodes with "
    "`partition.exclude`, and report them to who makes the EP"
)


@dataclass(kw_only=True)
class Judge:
    """Judges the outputs of one model, as one kind of sessions computed them.

    Attributes:
        file: the EPContext model.
        sessions: who computed what is judged.
        providers: the EPs of the model.
        asked: the manifest's limits.
        idle: outputs that can be wrong, but whose being right says nothing.
        right: who computed what is right.
    """

    file: str
    sessions: Sessions
    providers: Sequence[ExecutionProvider]
    precision: Precision
    asked: Tolerance
    idle: frozenset[str] = frozenset()
    right: str = "the source model"
    _judged: list[OutputNumbers] = field(default_factory=list, init=False)

    def judge(
        self, label: str, expected: Mapping[str, Array], actual: Mapping[str, Array]
    ) -> Iterator[Finding | OutputNumbers]:
        """One input set: numbers for each output, and a finding for each that is out of limits."""
        for name in sorted(actual.keys() - expected.keys()):
            yield self._finding("fail", f"{label}: output '{name}' is one too many", _REMEDY)
        for name, right in expected.items():
            if name not in actual:
                yield self._finding("fail", f"{label}: output '{name}' is missing", _REMEDY)
                continue
            found = compare.compare(right, actual[name])
            allowed = tolerances.limits(self.providers, self.precision, found.dtype, self.asked)
            excess = compare.excess(found, allowed)
            numbers = OutputNumbers(
                model=self.file,
                output=name,
                input_set=label,
                sessions=self.sessions,
                comparison=found,
                tolerance=allowed,
                passed=excess is None,
            )
            self._judged.append(numbers)
            yield numbers
            if excess is not None:
                message = f"{label}: output '{name}': {excess}{_worst(found)}"
                yield self._finding("fail", message, _REMEDY)

    def summary(self) -> Iterator[Finding]:
        """After the last input set: what has passed, in one finding."""
        if not self._judged or not all(numbers.passed for numbers in self._judged):
            return
        told = {numbers.output for numbers in self._judged} - self.idle
        if not told:
            return
        outputs = len(told)
        sets = len({numbers.input_set for numbers in self._judged})
        words = [
            f"{outputs} output{'s' * (outputs != 1)} on {sets} input set{'s' * (sets != 1)} "
            f"{_WHO[self.sessions]} agree with {self.right}"
        ]
        comparisons = [n.comparison for n in self._judged if n.output in told]
        if all(comparison.equal for comparison in comparisons):
            words.append("to the bit")
        else:
            largest = max((c.max_rel for c in comparisons if c.max_rel is not None), default=None)
            cosine = min((c.cosine for c in comparisons if c.cosine is not None), default=None)
            words += [] if largest is None else [f"largest relative error {largest:.2e}"]
            words += [] if cosine is None else [f"least cosine {cosine:.9f}"]
        yield self._finding("pass", ", ".join(words))

    def _finding(self, outcome: Outcome, message: str, remedy: str = "") -> Finding:
        told = message if outcome == "pass" else f"{message} ({_WHO[self.sessions]})"
        return Finding("numbers", "outputs", self.file, outcome, told, remedy)


_WHO: dict[Sessions, str] = {
    "generating": "of the generating sessions",
    "files": "of the files",
}


def _worst(found: Comparison) -> str:
    if found.worst is None:
        return ""
    at = list(found.worst.index)
    return f"; worst at {at}: {found.worst.actual}, should be {found.worst.expected}"
