"""Numbers of a model in pieces: each piece by itself, and the pieces one after the other.

By itself, a piece takes the source's values at its cut, so that piece causes any wrong value. One
after the other, the pieces show the sum of their errors.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import numpy as np
import onnx
from msgspec.structs import replace

from epctx.graph.serde import reader
from epctx.inference.feeds import Feeds
from epctx.inference.split import SegmentStep
from epctx.verification.findings import NOT_CHECKED, Finding, OutputNumbers
from epctx.verification.folder import ContextModel
from epctx.verification.numbers import pieces, recordings
from epctx.verification.numbers.expected import Expected
from epctx.verification.numbers.files import LOADS, name_of, words_of
from epctx.verification.numbers.judge import Judge, Outputs
from epctx.verification.numbers.pieces import CHAIN, PIECES, RIGHT, Values
from epctx.verification.numbers.tasks import Task, budget, finding, unchecked
from epctx.verification.numbers.tolerances import precisions
from epctx.verification.numbers.unoptimized import Rerun
from epctx.verification.request import Kept

Found = Finding | OutputNumbers
_NAMES: Final = (
    "the other pieces and the end of the chain are compared; `optimize: {level: none}` keeps the "
    "source's names"
)


def loads(model: ContextModel, kept: Kept | None) -> dict[int, Finding]:
    """Return the finding of each piece's load, by the piece's number."""
    if kept is None or not model.cuts:
        return {}
    values, numbers = Values(kept.files, name_of(model)), range(1, len(model.cuts) + 2)
    findings = {n: recordings.kept(kept.files, values.place(n), LOADS, Finding) for n in numbers}
    return {number: each for number, each in findings.items() if each is not None}


def judged(
    task: Task,
    kept: Kept,
    built: onnx.ModelProto,
    source: Expected,
    judge: Judge,
    seconds: float | None,
) -> Iterator[Found]:
    """Judge the outputs of a model's pieces. If the sessions that compiled the pieces were run,
    their outputs are judged (this host cannot load the files then); else those of the files.

    Args:
        task: the model.
        kept: folders of recorded outputs.
        built: the model.
        source: runs its source in pieces once more.
        judge: judges its outputs.
        seconds: time budget of the runs; None if there was none.

    Raises:
        ModelError: the source cannot be read.
        StorageError: a recording cannot be read.
    """
    assert task.model.cuts is not None
    steps = pieces.split(built.graph, task.model.cuts)
    own = kept.generating
    if own is not None and (own / name_of(task.model) / PIECES).is_dir():
        kept = replace(kept, files=own)
        yield from _alone(task, kept, steps, {}, source, judge, seconds)
        return
    refused = {n: each for n, each in loads(task.model, kept).items() if each.outcome != "pass"}
    yield from _alone(task, kept, steps, refused, source, judge, seconds)
    yield from _chain(task, kept, steps, refused, judge, seconds)


def _alone(
    task: Task,
    kept: Kept,
    steps: Sequence[SegmentStep],
    refused: Collection[int],
    source: Expected,
    judge: Judge,
    seconds: float | None,
) -> Iterator[Found]:
    """Judge each piece on the values that the source computed."""
    model, proto = task.model, reader.read(task.source.source.path)
    crossing = {name for cut in model.cuts or () for name in cut}
    lost = crossing - {name for node in proto.graph.node for name in node.output}
    zeros = {n: z for n, z in pieces.zero_points(proto.graph).items() if n in crossing}
    values = Values(kept.source, name_of(model))

    def compute(number: int, feeds: Feeds, optimized: bool) -> Outputs:
        return _as_numbers(source.compute_piece(number, feeds, optimized, values), zeros)

    judge = dataclasses.replace(
        judge,
        sessions="pieces",
        precision=precisions(proto, also=crossing - lost),
        random=task.random | crossing if task.random else task.random,
        reference=None,
        inner=frozenset(crossing),
    )
    cases = {case.label: case for case in task.cases}
    late: dict[str, list[int]] = {}
    for number, step in enumerate(steps, start=1):
        which, place = words_of(number, of=len(steps)), values.place(number)
        yield from _lost(model, which, step, lost)
        if number in refused or not step.outputs or not lost.isdisjoint(step.inputs):
            continue
        names = [name for name in step.outputs if name not in lost]
        known = {}
        for case, _ in task.ready:
            then = recordings.read(kept.files, f"{place}/{RIGHT}", case.feeds)
            now = values.read(case.feeds, names) if then is None else then
            known[case.label] = _as_numbers(now, zeros)
        again = Rerun(partial(compute, number), cases)
        own = dataclasses.replace(judge, when=which, known=known, rerun=again)
        for case, _ in task.ready:
            failed = recordings.failure(kept.files, place, case.feeds)
            actual = recordings.read(kept.files, place, case.feeds)
            if failed is not None:
                yield failed
            elif actual is not None:
                compared = {name: value for name, value in actual.items() if name not in lost}
                yield from own.judge(case.label, known[case.label], _as_numbers(compared, zeros))
            else:
                late.setdefault(case.label, []).append(number)
        yield from own.summary()
    for case, _ in task.ready:
        if case.label in late:
            listed = f"{case.label}, {words_of(*late[case.label], of=len(steps))}"
            yield budget(model, seconds, replace(case, label=listed))


def _chain(
    task: Task,
    kept: Kept,
    steps: Sequence[SegmentStep],
    refused: Mapping[int, Finding],
    judge: Judge,
    seconds: float | None,
) -> Iterator[Found]:
    """Judge the outputs of the pieces, each run on the outputs of the pieces before it."""
    if refused:
        if all(each.outcome == "not checkable" for each in refused.values()):
            message = f"{NOT_CHECKED}not every piece of it can be loaded on this host"
            yield unchecked(task.model, message, "verify it on the device")
        return
    judge = dataclasses.replace(judge, sessions="chain", reference=None)
    values = Values(kept.files, name_of(task.model), CHAIN)
    places = [values.place(number) for number, step in enumerate(steps, start=1) if step.outputs]
    for case, right in task.ready:
        failures = (recordings.failure(kept.files, each, case.feeds) for each in places)
        failed = next(filter(None, failures), None)
        if failed is not None:
            yield failed
        elif all(recordings.has(kept.files, each, case.feeds) for each in places):
            outputs = values.read(case.feeds, task.model.outputs)
            yield from judge.judge(case.label, right, outputs)
        else:
            yield budget(task.model, seconds, case)
    yield from judge.summary()


def _lost(
    model: ContextModel, which: str, step: SegmentStep, lost: Collection[str]
) -> Iterator[Finding]:
    """Yield the findings about values at a piece's cuts whose names the source does not have."""
    for name in (name for name in step.outputs if name in lost):
        message = f"{which}: its value {name!r} is not compared: the source has none of this name"
        yield finding(model, "pieces", "not checkable", message, _NAMES)
    needed = ", ".join(repr(name) for name in step.inputs if name in lost)
    if needed:
        message = f"{which}: not run by itself: the source has no {needed} to give it"
        yield finding(model, "pieces", "not checkable", message, _NAMES)


def _as_numbers(outputs: Outputs, zeros: Mapping[str, float]) -> Outputs:
    """Turn quantized values at a cut into numbers, so that one step does not count as an error."""
    return {
        name: value.astype(np.float32) - np.float32(zeros[name]) if name in zeros else value
        for name, value in outputs.items()
    }
