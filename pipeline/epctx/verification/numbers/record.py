"""What the generating sessions compute on the manifest's inputs, kept for `numbers` to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.errors import CompileError, Failure
from epctx.files.outputs import context_file
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource, VerifySettings
from epctx.runtime.feeds import Feeds
from epctx.verification.folder import read_proto, summarize
from epctx.verification.numbers import recordings
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.runs import Budget, Pause
from epctx.verification.numbers.sizes import open_names
from epctx.verification.numbers.source_model import SourceModel

Run = Callable[[str, Feeds], Mapping[str, Array]]
"""Runs a model, by name, on its generating sessions: outputs by name."""


class Turn(Struct, frozen=True, kw_only=True):
    """One of several devices for which a group is run, one after the other.

    Attributes:
        name: in words; empty: there is one, and the sessions that compiled are run.
    """

    name: str = ""
    index: int = 0
    of: int = 1

    def place(self, model: str) -> str:
        """Where what a model computes is kept."""
        return f"{model}/alone_{self.index}" if self.name else model


FIRST: Final = Turn()


def record(
    sources: Sequence[ModelSource],
    folder: Path,
    recorded: Path,
    settings: VerifySettings,
    run: Run,
    budget: Budget,
    turn: Turn = FIRST,
) -> tuple[Failure, ...]:
    """Run models on the input sets that verify will use, and keep what they compute.

    A model for which no inputs can be made is passed over here, and one with open dimensions, whose
    sizes verify looks for; it says why a model is not checked.

    Args:
        folder: where `<model>_ctx.onnx` lies.
        recorded: where the outputs are kept (`verification.numbers.recordings`).
        turn: of all devices that the models are run for, this one.

    Returns:
        Of each model that a session cannot run, why; it is kept, too.

    Raises:
        ModelError: an input file cannot be read.
        ManifestError: a range does not fit its input.
        StorageError: the disk refuses.
    """
    input_sets = InputSets(settings.inputs)
    failures: list[Failure] = []
    for source in sources:
        file, place = context_file(source.name), turn.place(source.name)
        made = summarize(file, read_proto(folder / file))
        inputs = SourceModel.read(source).fixed_inputs(made)
        if input_sets.problems(inputs) or (input_sets.generated and open_names(inputs)):
            continue
        cases = list(input_sets.cases(inputs))
        for number, case in enumerate(cases):
            if budget.used_up:
                return tuple(failures)
            nth = turn.index * len(cases) + number + 1
            budget.pause(Pause(model=source.name, number=nth, of=turn.of * len(cases)))
            try:
                outputs = run(source.name, case.feeds)
            except CompileError as error:
                error.model = error.model or source.name
                failures.append(error.failure)
                recordings.refuse(recorded, place, f"{case.label}: {error.reason}")
                break
            recordings.write(recorded, place, case.feeds, outputs)
    return tuple(failures)
