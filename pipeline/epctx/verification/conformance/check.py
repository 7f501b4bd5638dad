"""Conformance: what spec/ep-context-design.md and design section 6 ask of the files; no run needed.

The checks of one model are in `nodes` and `models`, those of the whole folder in `layout`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from epctx.verification import layout
from epctx.verification.conformance import binaries, models, nodes
from epctx.verification.conformance.subject import Check, Fault, Subject
from epctx.verification.findings import Finding, PolicyName
from epctx.verification.folder import GroupFolder, Unreadable


class ModelCheck(Struct, frozen=True):
    """A check of one model: its word in findings, what a pass says, and when there is one to make.

    What does not apply (a prefix that nobody asked for) is no check; it leaves no finding.
    """

    word: str
    passed: str
    faults: Check
    applies: Callable[[Subject], bool] = lambda subject: True


CHECKS: Final = (
    ModelCheck("well_formed", "is a valid ONNX model", models.well_formed),
    ModelCheck("ep_context", "what was asked for is compiled", models.has_context),
    ModelCheck("attributes", "its EPContext attributes keep to the op schema", nodes.attributes),
    ModelCheck("source", "every EPContext node has an EP", nodes.sources),
    ModelCheck("ep_cache_context", "every context is there, as embed_mode says", nodes.contexts),
    ModelCheck("context_binary", "what is in its context binaries can be read", binaries.readable),
    ModelCheck("main_context", "every EPContext node finds its context", nodes.main_contexts),
    ModelCheck("names", "names are unique", nodes.names),
    ModelCheck("prefix", "names begin with the prefix", nodes.prefix, nodes.has_prefix),
    ModelCheck("types", "EPContext outputs have type and shape", nodes.types),
    ModelCheck("self_contained", "needs no file outside the folder", models.self_contained),
    ModelCheck("canonical", "is in canonical form", models.canonical_form, models.is_ours),
)
"""Checks of a model, in the order of the report."""


@dataclass(frozen=True, kw_only=True)
class Conformance:
    """Every model as the op and section 6 want it; the folder whole and without leftovers."""

    name: PolicyName = field(default="conformance", init=False)

    def check(self, folder: GroupFolder, earlier: Sequence[Finding]) -> Iterator[Finding]:
        """Look at each model, then at the folder."""
        for file, why in folder.unreadable:
            yield _finding("readable", file, Fault(message=why))
        for model in folder.models:
            try:
                subject = Subject(folder=folder, model=model, proto=folder.load(model))
            except Unreadable as error:  # it changed under our hands
                yield _finding("readable", model.file, Fault(message=str(error)))
                continue
            for check in CHECKS:
                if check.applies(subject):
                    yield from _verdict(check, subject)
        yield from layout.check(folder)


def _verdict(check: ModelCheck, subject: Subject) -> Iterator[Finding]:
    file = subject.model.file
    faults = list(check.faults(subject))
    if not faults:
        yield _finding(check.word, file, Fault(message=check.passed, remedy="", outcome="pass"))
    for fault in faults:
        yield _finding(check.word, file, fault)


def _finding(check: str, file: str, fault: Fault) -> Finding:
    said = fault.outcome, fault.message, fault.remedy
    return Finding("conformance", check, file, *said)
