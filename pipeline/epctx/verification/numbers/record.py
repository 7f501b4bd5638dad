"""What the generating sessions compute on the manifest's inputs, kept for `numbers` to judge."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from epctx.files.outputs import context_file
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource, VerifySettings
from epctx.runtime.feeds import Feeds
from epctx.verification.folder import read_proto, summarize
from epctx.verification.numbers import recordings
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.runs import Budget
from epctx.verification.numbers.source_model import SourceModel

Run = Callable[[str, Feeds], Mapping[str, Array]]
"""Runs a model, by name, on its generating sessions: outputs by name."""


def record(
    sources: Sequence[ModelSource],
    folder: Path,
    recorded: Path,
    settings: VerifySettings,
    run: Run,
) -> None:
    """Run models on the input sets that verify will use, and keep what they compute.

    A model for which no inputs can be made is passed over here; verify says why it is not checked.

    Args:
        folder: where `<model>_ctx.onnx` lies.
        recorded: where the outputs are kept (`verification.numbers.recordings`).

    Raises:
        ModelError: an input file cannot be read.
        ManifestError: a range does not fit its input.
        CompileError: a session cannot run.
        StorageError: the disk refuses.
    """
    input_sets = InputSets(settings.inputs)
    budget = Budget(settings.budget)
    for source in sources:
        file = context_file(source.name)
        made = summarize(file, read_proto(folder / file))
        inputs = SourceModel.read(source).fixed_inputs(made)
        if input_sets.problems(inputs):
            continue
        for case in input_sets.cases(inputs):
            if budget.used_up:
                return
            recordings.write(recorded, source.name, case.feeds, run(source.name, case.feeds))
