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
"""Kinds of causes."""


class Reading(Struct, frozen=True, kw_only=True):
    """Comparison of a value with the source model's; `place` is the index of its node."""

    place: int
    node: str
    op_type: str
    value: str
    passed: bool
    comparison: Comparison


class Cause(Struct, frozen=True, kw_only=True):
    """Cause of a wrong node or of a failed compile. `remedy` is set only for a known fault.

    Attributes:
        ranges: lowest and highest number of each input and output of the node, in the source.
    """

    kind: Kind
    why: str
    remedy: str = ""
    ranges: Ranges = {}


class Proposal(Struct, frozen=True, kw_only=True):
    """Change of the manifest, as JSON. `failure` is None if a build with the change passed."""

    what: str
    manifest: Written
    failure: str | None = None


class Bisection(Brief, frozen=True, kw_only=True):
    """Search result for one model of a group.

    Attributes:
        name: name of the manifest.
        ended: how the search ended. `vanished`: the error disappears when intermediate values are
            read. `crashed`: the model does not compile or run, so no values could be read.
        sessions, input_set, inputs, tolerance: the sessions with wrong numbers, the inputs they ran
            on, and the tolerance that they exceeded.
        nodes: number of nodes in the optimized model's main graph.
        readings: every value that was read, in the model's order.
        first: readings of the first node that is known to be wrong.
        suspects: number of nodes before `first` that were not read, or that may crash the build.
        tried: proposals in the order tried; only the last one can have repaired the build.
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
        """Proposal that repairs the build; None if none does."""
        return next((each for each in self.tried if each.failure is None), None)
