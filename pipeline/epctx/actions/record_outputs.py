"""Running what the sessions that compile a group hold in memory, before anything is published.

It is how a shared QNN context can be checked without an NPU (real-eps.md section 6), and is done
only where this host cannot load what was written, or the manifest asks for it: a run in a simulator
takes as long as all else together. The numbers of the generating sessions are kept here and judged
by verify, so a tolerance can change without a compile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from msgspec.structs import replace

from epctx.errors import CompileError, Failure
from epctx.files.outputs import context_file
from epctx.graph.inputs import Array
from epctx.graph.model import Partition
from epctx.manifest import ModelGroup, ModelSource
from epctx.providers.base import (
    ExecutionProvider,
    Generating,
    PartitionedModel,
    TellsBoundaries,
    WritesVariants,
)
from epctx.providers.onnxruntime.whole_model import GeneratingModel
from epctx.runtime import values
from epctx.runtime.feeds import Feeds
from epctx.stages.compile import CompiledGroup
from epctx.verification.eps import Providers
from epctx.verification.folder import open_folder
from epctx.verification.numbers import record as recording
from epctx.verification.numbers import recordings
from epctx.verification.numbers.record import Turn
from epctx.verification.numbers.recordings import Variant
from epctx.verification.numbers.runs import Budget, Pause
from epctx.verification.numbers.tasks import obstacle

Values = Mapping[str, ort.OrtValue]
_JOINT = (
    "the generating sessions do not fit together: what one EP left inside its partitions, another "
    "compiled, and the session of the first computes it on the CPU"
)


def prepare(
    models: Sequence[PartitionedModel], providers: Sequence[ExecutionProvider], scratch: Path
) -> dict[str, GeneratingModel] | None:
    """The models as they will be run; None where no EP compiles with sessions that can be.

    To be called before the compile, which changes the models.
    """
    if not any(provider.native for provider in providers):
        return None
    return {model.name: GeneratingModel(model, scratch / "rest" / model.name) for model in models}


def record(
    models: Mapping[str, GeneratingModel],
    compiled: CompiledGroup,
    group: ModelGroup,
    folder: Path,
    recorded: Path,
    started: Callable[[str, str], None],
    pausing: Callable[[Pause], None],
) -> tuple[Failure, ...] | None:
    """Run the generating sessions on the inputs of the manifest and keep what they compute.

    Of a model of which EPs compiled what another left, or that does not run, the reason is kept
    instead.

    Args:
        models: as `prepare` gave them.
        group: the model group.
        folder: where the compile has put its outputs.
        recorded: where what they compute is kept.
        started: hears which model runs on which EP, before it does: native code may crash.
        pausing: hears of each pause before a run on an input set.

    Returns:
        Of each model that a session cannot run, why; None: none can be run on this host, or the
        files can be loaded here, which proves more.

    Raises:
        ModelError: an input file cannot be read.
        ManifestError: a range does not fit its input.
        StorageError: the disk refuses.
    """
    used = {p.provider for model in compiled.partitioned for p in model.partitions}
    workspaces = {
        index: each
        for index, each in enumerate(compiled.workspaces)
        if index in used and isinstance(each, Generating) and each.cannot_run() is None
    }
    if workspaces.keys() != used:
        return None
    if group.verify.numbers == "full" and _loadable(group, list(models), folder):
        return None
    made = list(workspaces.values())
    for name in compiled.joint:
        recordings.refuse(recorded, name, _JOINT)
    alone = models.keys() - compiled.joint
    sources = [source for source in group.models if source.name in alone]
    budget = Budget(group.verify.budget, pausing=pausing)

    def run(name: str, feeds: Feeds) -> dict[str, Array]:
        def run_partition(partition: Partition, feeds: Values) -> Values:
            started(name, group.execution_providers[partition.provider].provider)
            return workspaces[partition.provider].run(partition, feeds)

        return _outputs(models[name], feeds, run_partition)

    def on_device(turn: Turn) -> tuple[Failure, ...]:
        _tell_boundaries(list(models), recorded, made, turn)
        return recording.record(sources, folder, recorded, group.verify, run, budget, turn)

    return _on_each_device(on_device, made, sources, recorded, budget)


def _on_each_device(
    run: Callable[[Turn], tuple[Failure, ...]],
    workspaces: Sequence[Generating],
    sources: Sequence[ModelSource],
    recorded: Path,
    budget: Budget,
) -> tuple[Failure, ...]:
    """Compile and `run` for one device after the other, while `budget` lasts; return what fails."""
    failures: list[Failure] = []
    turns = _turns(workspaces)
    variants = [Variant(name=turn.name, place="", begun=False) for turn in turns]
    _tell_variants(recorded, sources, turns, variants)
    for turn in turns:
        if turn.name:
            budget.pause(Pause(model=turn.name))
            if budget.used_up:
                break
        try:
            misfit = _choose(workspaces, turn)
        except CompileError as error:
            failures.append(error.failure)
            break
        variants[turn.index] = replace(variants[turn.index], begun=True, misfit=misfit)
        _tell_variants(recorded, sources, turns, variants)
        failures += run(turn)
    return tuple(failures)


def _outputs(
    model: GeneratingModel, feeds: Feeds, run_partition: Callable[[Partition, Values], Values]
) -> dict[str, Array]:
    """Run a model, piece by piece, and return its outputs as arrays, by name."""

    def run(partition: Partition, feeds: Values) -> Values:
        made = run_partition(partition, feeds)
        # Out of the EP's own memory: QNN's simulator takes OpenVINO's for its own, and fails.
        return {key: values.to_value(values.to_python(made[key])) for key in made}

    computed = model.run({key: values.to_value(array) for key, array in feeds.items()}, run)
    found = [values.to_python(each) for each in computed.values()]
    named = values.flat(list(computed), found, [model.kinds[each] for each in computed])
    return {key: np.asarray(value) for key, value in named}


def _turns(workspaces: Sequence[Generating]) -> list[Turn]:
    """Each device that the files are for, if no session runs what was compiled for all of them."""
    names = [
        name for each in workspaces if isinstance(each, WritesVariants) for name in each.variants()
    ]
    turns = [Turn(name=name, index=index, of=len(names)) for index, name in enumerate(names)]
    return turns or [recording.FIRST]


def _choose(workspaces: Sequence[Generating], turn: Turn) -> str | None:
    """Compile for one device, and tell in what its graphs in the files are others."""
    for each in workspaces:
        if isinstance(each, WritesVariants) and turn.name in each.variants():
            return each.choose(turn.name)
    return None


def _tell_boundaries(
    models: Sequence[str], recorded: Path, workspaces: Sequence[Generating], turn: Turn
) -> None:
    telling = [each for each in workspaces if isinstance(each, TellsBoundaries)]
    for name in models if len(telling) == len(workspaces) else ():
        told = [each for workspace in telling for each in workspace.boundaries(name)]
        recordings.write_boundaries(recorded, turn.place(name), told)


def _tell_variants(
    recorded: Path,
    sources: Sequence[ModelSource],
    turns: Sequence[Turn],
    variants: Sequence[Variant],
) -> None:
    """Keep how far the devices are; where there is one, nothing."""
    for source in sources if turns[0].name else ():
        placed = [
            replace(variant, place=turn.place(source.name))
            for turn, variant in zip(turns, variants, strict=True)
        ]
        recordings.write_variants(recorded, source.name, placed)


def _loadable(group: ModelGroup, models: Sequence[str], folder: Path) -> bool:
    """Whether this host can load what was written, as far as its EPs know before it is tried."""
    built = open_folder(
        folder,
        providers=Providers.of_group(group.execution_providers),
        models=[context_file(name) for name in models],
    )
    sharing = len(models) > 1
    return all(obstacle(built, model, sharing=sharing) is None for model in built.models)
