"""Result of `epctx bisect`."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from epctx.manifest import Tolerance, VerifyInputs, Written
from epctx.quantization.ranges import Ranges
from epctx.text import Brief
from epctx.verification.findings import Comparison

Kind = Literal[
    "fp16 overflow",
    "fp16 underflow",
    "known EP fault",
    "quantization range",
    "compile failure",
    "unknown",
]
"""Causes that are distinguished."""


class Reading(Struct, frozen=True, kw_only=True):
    """A value of the compiled model against the source's. `place`: of its node, from 0 on."""

    place: int
    node: str
    op_type: str
    value: str
    passed: bool
    comparison: Comparison


class Cause(Struct, frozen=True, kw_only=True):
    """Cause of a wrong node or of a failed compile; `remedy` belongs to a known fault.

    Attributes:
        ranges: lowest and highest number of what the node takes and gives, in the source.
    """

    kind: Kind
    why: str
    remedy: str = ""
    ranges: Ranges = {}


class Proposal(Struct, frozen=True, kw_only=True):
    """A change of the manifest, as JSON; `failure` is None if a build with it passed."""

    what: str
    manifest: Written
    failure: str | None = None


class Bisection(Brief, frozen=True, kw_only=True):
    """The search of one model of a group.

    Attributes:
        name: the manifest's.
        ended: how; vanished: the fault is gone as soon as values are read; crashed: it cannot be
            run, and what is known of the EP told why.
        sessions, input_set, inputs, tolerance: whose numbers are wrong, on what, by which limits.
        nodes: of the optimized model's main graph.
        readings: every value that was read, in the model's order.
        first: those of the first wrong node; of the first that is known, if there are `suspects`:
            nodes before it of which nothing is.
        tried: the last one may repair it.
    """

    name: str
    target: str
    group: str
    model: str
    ended: Literal["nothing wrong", "found", "budget", "vanished", "crashed"] = "nothing wrong"
    sessions: str = ""
    input_set: str = ""
    inputs: VerifyInputs = VerifyInputs()
    tolerance: Tolerance = Tolerance()
    nodes: int = 0
    builds: int = 0
    seconds: float = 0.0
    readings: tuple[Reading, ...] = ()
    first: tuple[Reading, ...] = ()
    suspects: int = 0
    cause: Cause | None = None
    tried: tuple[Proposal, ...] = ()

    @property
    def repair(self) -> Proposal | None:
        """The proposal that repairs the build; None if none does."""
        return next((each for each in self.tried if each.failure is None), None)
