"""The table of docs/numbers.md: which faults of an execution provider verification finds.

    python -m tests.mutation.table [--write] [--misses] [--kinds Y1,KP] [--faults zeroed,…]

Each fault of the liar changes one output of each kind of model, and epctx's judge compares it with
the right one: once by the limits of the reference EP, once by those of QNN.
"""

from __future__ import annotations

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from itertools import chain, repeat
from multiprocessing import get_context
from pathlib import Path
from typing import Final, Literal

import numpy as np
from msgspec.structs import asdict

from epctx.manifest import Tolerance
from epctx.verification.findings import Finding, OutputNumbers
from epctx.verification.numbers.judge import LITTLE, Judge, constant
from tests.mutation import task
from tests.mutation.kinds import KINDS, Kind, Run, prepared
from tests.mutation.liar.epctx_liar import LiarExecutionProvider
from tests.mutation.liar.epctx_liar.faults import NAMES, OF_CLASSES, OF_PROBABILITIES, Liar
from tests.mutation.task import ROUNDING, Effect, Outputs

PAGE: Final = Path(__file__).parents[2] / "docs" / "numbers.md"
BEGIN: Final = "<!-- The table of faults: python -m tests.mutation.table --write -->"
END: Final = "<!-- End of the table of faults. -->"
Limits = Literal["exact", "npu"]
LIMITS: Final[tuple[Limits, ...]] = ("exact", "npu")
HARM: Final = 0.1
"""Effect on the task beyond which no fault of a float model may be missed."""


@dataclass(frozen=True)
class Cell:
    """Verdict of verification on a fault in a kind of model.

    Attributes:
        verdict: C: caught; N: not checkable; M: missed; ".": it changes nothing, or does not apply.
        effect: of what is missed, where only a part is not checkable.
        allowed: the tolerance by which it was missed.
        found: what the comparison found, or why it is not checkable.
    """

    fault: str
    kind: str
    limits: Limits
    verdict: Literal["C", "N", "M", "."]
    effect: Effect
    allowed: str = ""
    found: str = ""

    @property
    def forbidden(self) -> bool:
        """Tell whether it breaks the promise of docs/numbers.md."""
        floating = KINDS[self.kind].floating
        return self.verdict == "M" and floating and self.effect.task > HARM + ROUNDING


def judged(
    run: Run, limits: Limits, found: Sequence[Outputs]
) -> tuple[list[Finding], list[OutputNumbers]]:
    """Judge outputs as verification does; nothing else here knows how a judge is driven."""
    judge = Judge(
        file="model_ctx.onnx",
        sessions="files",
        providers=[_provider(limits)],
        precision=run.source.precision,
        probabilities=run.source.probabilities,
        asked=Tolerance(),
        idle=constant(list(run.outputs.values())),
        known=run.outputs,
        rerun=run.again,
    )
    told: list[Finding | OutputNumbers] = []
    for (label, right), given in zip(run.outputs.items(), found, strict=True):
        told += judge.judge(label, right, given)
    told += judge.summary()
    findings = [each for each in told if isinstance(each, Finding)]
    return findings, [each for each in told if isinstance(each, OutputNumbers)]


@cache
def _provider(limits: Limits) -> LiarExecutionProvider:
    return LiarExecutionProvider({"tolerance": limits})


def lies(kind: str, fault: str) -> list[Outputs] | None:
    """Return the outputs of a kind with a fault, set by set; None if it does not apply."""
    about = KINDS[kind]
    if fault in (OF_CLASSES, OF_PROBABILITIES) and fault not in about.faults:
        return None
    liar = Liar(fault, about.place, about.output)
    found: list[Outputs] = []
    for outputs in prepared(kind).outputs.values():
        told = liar.lie(list(outputs.values()))
        if told is None:
            return None
        found.append(dict(zip(outputs, told, strict=True)))
    return found


def cells(kind: str, fault: str) -> Iterator[Cell]:
    """Yield the verdicts on one fault in one kind of model, by each of LIMITS."""
    run, about, found = prepared(kind), KINDS[kind], lies(kind, fault)
    whole = Effect() if found is None else _effect(about, run, found)
    name = run.source.outputs[about.output]
    for limits in LIMITS:
        if found is None or whole.nothing:
            yield Cell(fault, kind, limits, ".", whole)
            continue
        findings, numbers = judged(run, limits, found)
        if any(each.outcome == "fail" for each in findings):
            yield Cell(fault, kind, limits, "C", whole)
            continue
        numbers = [each for each in numbers if each.output == name]
        gaps = [each.message for each in findings if each.outcome == "not checkable"]
        blind = all(each.comparison.checkable < LITTLE for each in numbers)
        effect = _effect(about, run, _mended(about, name, run, found, numbers)) if gaps else whole
        if gaps and (blind or effect.nothing):
            yield Cell(fault, kind, limits, "N", whole, found=gaps[0])
        else:
            yield Cell(fault, kind, limits, "M", effect, *_limits(numbers))


def _effect(about: Kind, run: Run, found: Sequence[Outputs]) -> Effect:
    right = list(run.outputs.values())
    return task.effect(about.task, about.place.axis, about.output, right, found)


def _mended(
    about: Kind, name: str, run: Run, found: Sequence[Outputs], numbers: Sequence[OutputNumbers]
) -> list[Outputs]:
    """Return outputs without the fault in the channels that the tolerance hides.

    Only these may be named as not checkable; what is wrong elsewhere is missed.
    """
    axis = about.place.axis
    moved = np.concatenate([np.moveaxis(each[name], axis, -1) for each in run.outputs.values()])
    magnitudes = np.abs(moved).reshape(-1, moved.shape[-1]).max(axis=0)
    allowed = max(each.tolerance.max_rel or 0.0 for each in numbers)
    shape = [1] * moved.ndim
    shape[axis] = -1
    hidden = (magnitudes < allowed * magnitudes.max()).reshape(shape)
    pairs = zip(run.outputs.values(), found, strict=True)
    return [{**y, name: np.where(hidden, x[name], y[name])} for x, y in pairs]


def _limits(numbers: Sequence[OutputNumbers]) -> tuple[str, str]:
    """Return the tolerance of an output, and what the comparison found on the worst set."""
    worst = max(numbers, key=lambda each: each.comparison.max_rel or 0.0)
    given = asdict(worst.tolerance).items()
    allowed = ", ".join(f"{name} {value:g}" for name, value in given if value is not None)
    found = worst.comparison
    return allowed, f"max_rel {found.max_rel or 0:.2g}, cosine {found.cosine or 0:.6g}"


def column(kind: str, faults: Sequence[str] = NAMES) -> list[Cell]:
    """Return all cells of one kind."""
    return [cell for fault in faults for cell in cells(kind, fault)]


def words(found: Sequence[Cell]) -> dict[tuple[str, str], str]:
    """Return the two letters of each fault and kind: by the reference EP's limits, by QNN's."""
    letters: dict[tuple[str, str], str] = {}
    for each in found:
        at = each.fault, each.kind
        letters[at] = letters.get(at, "") + each.verdict
    return {at: "." if both == ".." else both for at, both in letters.items()}


def page(found: Sequence[Cell], kinds: Sequence[str]) -> str:
    """Return what docs/numbers.md has between its markers."""
    letters = words(found)
    lines = [f"| fault | {' | '.join(kinds)} |", f"|---|{'---|' * len(kinds)}"]
    for fault in dict.fromkeys(each.fault for each in found):
        lines.append(f"| {fault} | {' | '.join(letters[fault, kind] for kind in kinds)} |")
    lines += ["", "| | kind of model |", "|---|---|"]
    lines += [f"| {kind} | {KINDS[kind].name} |" for kind in kinds]
    lines += [
        "",
        "| limits | caught | not checkable | missed | no effect |",
        "|---|---|---|---|---|",
    ]
    for limits in LIMITS:
        count = Counter[str](each.verdict for each in found if each.limits == limits)
        lines.append(f"| {limits} | {' | '.join(str(count[letter]) for letter in 'CNM.')} |")
    lines += ["", "| missed | kinds, with the effect on their task in % | the tolerance |"]
    lines += ["|---|---|---|", *_misses(found)]
    reasons: dict[str, list[str]] = {}
    for each in found:
        if each.verdict == "N":
            reasons.setdefault(each.found, []).append(f"{each.kind} ({each.limits})")
    if reasons:
        lines += ["", "| not checkable in | why |", "|---|---|"]
    lines += [f"| {', '.join(dict.fromkeys(at))} | {why} |" for why, at in reasons.items()]
    return "\n".join(lines)


def _misses(found: Sequence[Cell]) -> Iterator[str]:
    """Yield a row for each fault and tolerance, with the kinds in which it was missed."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for each in found:
        if each.verdict == "M":
            groups.setdefault((each.fault, each.allowed), []).append(each)
    for (fault, allowed), missed in groups.items():
        worst = sorted(missed, key=lambda each: -round(each.effect.task, 3))
        kinds = ", ".join(f"{each.kind} {round(100 * each.effect.task, 1):g}" for each in worst)
        yield f"| {fault} | {kinds} | {allowed} |"


def main() -> None:
    """Print the table, or write it into the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--faults", default=",".join(NAMES))
    parser.add_argument("--misses", action="store_true", help="list each miss, the worst first")
    parser.add_argument("--write", action="store_true", help="write it into docs/numbers.md")
    asked = parser.parse_args()
    kinds = asked.kinds.split(",")
    faults = asked.faults.split(",")
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # of numpy in the processes, which start afresh
    with ProcessPoolExecutor(mp_context=get_context("spawn")) as pool:
        columns = pool.map(column, kinds, repeat(faults))
    found = sorted(chain.from_iterable(columns), key=lambda each: faults.index(each.fault))
    if asked.write:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
        text = f"{before}{BEGIN}\n\n{page(found, kinds)}\n\n{END}{rest.partition(END)[2]}"
        PAGE.write_text(text, encoding="utf-8")
    elif asked.misses:
        for each in sorted(found, key=lambda each: -each.effect.task):
            if each.verdict == "M":
                size = f"{each.effect.task:7.2%}, channel {each.effect.channel:7.2%}"
                print(f"{size}: {each.limits} {each.kind} {each.fault}: {each.found}", end="")
                print(f" ({each.allowed}){' FORBIDDEN' * each.forbidden}")
    else:
        print(page(found, kinds))


if __name__ == "__main__":
    main()
