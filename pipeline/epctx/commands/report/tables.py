"""Rows of the page's tables: what was left to the default EP, numbers, checks."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from msgspec import Struct

from epctx.engine.report import GroupReport
from epctx.graph.model import Decline, Refusal
from epctx.stages.report import ModelReport
from epctx.verification.findings import Finding, OutputNumbers, Sessions

SHOWN = 5
"""Names of nodes that a row tells."""

ROWS: Final = 1000
"""Rows of numbers or checks that a table of the page has; the report has the others."""


class LeftRow(Struct, frozen=True, kw_only=True):
    """Nodes of one op type that an EP left for one reason; some names, and where the first is."""

    op_type: str
    ep: str
    said: Refusal
    count: int
    names: tuple[str, ...]
    location: str


SESSIONS: Final[Mapping[Sessions, str]] = {
    "generating": "generating sessions",
    "files": "loaded from files",
    "pieces": "the piece by itself",
    "chain": "the pieces one after the other",
    "quantized": "quantized model",
    "device": "device",
}
"""Names, for readers, of the sessions that computed an output."""


class NumbersRow(Struct, frozen=True, kw_only=True):
    """An output of a model, by the input set on which it is worst.

    Attributes:
        group: `group@target`.
        sets: how many input sets and kinds of sessions it was compared on.
        used: the share of the tolerance that the worst one takes; None: not known.
    """

    group: str
    worst: OutputNumbers
    sets: int
    used: float | None


class CheckRow(Struct, frozen=True, kw_only=True):
    """A finding. `group`: `group@target`."""

    group: str
    finding: Finding


def left(model: ModelReport, *, every: bool = False) -> tuple[LeftRow, ...]:
    """What was left to the default EP and why, the most frequent first; or `every` node in a row of
    its own.
    """
    alike: dict[tuple[str, str, Refusal, str], list[Decline]] = {}
    for each in model.declined:
        for ep, said in each.by_provider():
            alike.setdefault((each.kind, ep, said, each.node * every), []).append(each)
    rows = (
        LeftRow(
            op_type=op_type,
            ep=ep,
            said=said,
            count=len(nodes),
            names=tuple(node.node for node in nodes[:SHOWN]),
            location=nodes[0].location,
        )
        for (op_type, ep, said, _), nodes in alike.items()
    )
    return tuple(sorted(rows, key=lambda row: -row.count))


def numbers(groups: Iterable[GroupReport]) -> tuple[NumbersRow, ...]:
    """Every output of every model, what is nearest to its tolerance or beyond it first. What pieces
    computed by themselves, and one after the other, has rows of its own.
    """
    rows: list[NumbersRow] = []
    for group in groups:
        outputs: dict[tuple[str, ...], list[OutputNumbers]] = {}
        for each in group.verify.numbers if group.verify else ():
            own = each.sessions if each.sessions in ("pieces", "chain") else ""
            outputs.setdefault((each.model, each.output, each.right, own), []).append(each)
        for found in outputs.values():
            worst = max(found, key=_severity)
            rows.append(
                NumbersRow(group=label(group), worst=worst, sets=len(found), used=used(worst))
            )
    return tuple(sorted(rows, key=lambda row: _severity(row.worst), reverse=True))


def checks(groups: Iterable[GroupReport]) -> tuple[CheckRow, ...]:
    """Every finding, what failed first, then what could not be checked."""
    order = ("fail", "not checkable", "pass")
    rows = (
        CheckRow(group=label(group), finding=finding)
        for group in groups
        for finding in (group.verify.findings if group.verify else ())
    )
    return tuple(sorted(rows, key=lambda row: order.index(row.finding.outcome)))


def label(group: GroupReport) -> str:
    """How a group is called."""
    return f"{group.group}@{group.target}"


def used(found: OutputNumbers) -> float | None:
    """The largest share of any of its tolerances that an output's error takes; 1: all of it."""
    shares = list(_shares(found))
    return max(shares) if shares else None


def _shares(found: OutputNumbers) -> Iterator[float]:
    comparison, allowed = found.comparison, found.tolerance
    for error, most in (
        (comparison.max_abs, allowed.max_abs),
        (comparison.max_rel, allowed.max_rel),
        (
            None if comparison.cosine is None else 1 - comparison.cosine,
            None if allowed.cosine_min is None else 1 - allowed.cosine_min,
        ),
    ):
        if error is not None and most:
            yield max(error, 0.0) / most


def _severity(found: OutputNumbers) -> tuple[bool, float, float]:
    comparison = found.comparison
    return (not found.passed, used(found) or 0.0, comparison.max_rel or comparison.max_abs or 0.0)
