"""What the generating sessions compute on the manifest's inputs, kept for `numbers` to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epctx.errors import CompileError, Failure
from epctx.files.outputs import context_file
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource, VerifySettings
from epctx.runtime.feeds import Feeds
from epctx.verification.folder import read_proto, summarize
from epctx.verification.numbers import recordings
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.runs import Budget, Pause, unpaused
from epctx.verification.numbers.sizes import open_names
from epctx.verification.numbers.source_model import SourceModel

Run = Callable[[str, Feeds], Mapping[str, Array]]
"""Runs a model, by name, on its generating sessions: outputs by name."""


def record(
    sources: Sequence[ModelSource],
    folder: Path,
    recorded: Path,
    settings: VerifySettings,
    run: Run,
    pausing: Callable[[Pause], None] = unpaused,
) -> tuple[Failure, ...]:
    """Run models on the input sets that verify will use, and keep what they compute.

    A model for which no inputs can be made is passed over here, and one with open dimensions, whose
    sizes verify looks for; it says why a model is not checked.

    Args:
        folder: where `<model>_ctx.onnx` lies.
        recorded: where the outputs are kept (`verification.numbers.recordings`).

    Returns:
        Of each model that a session cannot run, why; it is kept, too.

    Raises:
        ModelError: an input file cannot be read.
        ManifestError: a range does not fit its input.
        StorageError: the disk refuses.
    """
    input_sets = InputSets(settings.inputs)
    budget = Budget(settings.budget, pausing=pausing)
    failures: list[Failure] = []
    for source in sources:
        file = context_file(source.name)
        made = summarize(file, read_proto(folder / file))
        inputs = SourceModel.read(source).fixed_inputs(made)
        if input_sets.problems(inputs) or (input_sets.generated and open_names(inputs)):
            continue
        cases = list(input_sets.cases(inputs))
        for number, case in enumerate(cases):
            if budget.used_up:
                return tuple(failures)
            budget.pause(Pause(model=source.name, number=number + 1, of=len(cases)))
            try:
                outputs = run(source.name, case.feeds)
            except CompileError as error:
                error.model = error.model or source.name
                failures.append(error.failure)
                recordings.refuse(recorded, source.name, f"{case.label}: {error.reason}")
                break
            recordings.write(recorded, source.name, case.feeds, outputs)
    return tuple(failures)
