"""Stage record: the sessions that compiled a group run while they hold its models in memory.

So a shared QNN context can be checked without an NPU (real-eps.md section 6). The stage runs only
if this host cannot load the written files, or if the manifest asks for it: a run in a simulator
takes as long as the rest of the build. The outputs are kept, one input set after the other. verify
judges them, so a tolerance can change without a compile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from msgspec import Struct
from msgspec.structs import replace

from epctx.errors import CompileError, Failure
from epctx.files.outputs import context_file
from epctx.graph.inputs import Array
from epctx.graph.model import Partition
from epctx.inference import values
from epctx.inference.feeds import Feeds
from epctx.manifest import ModelGroup, ModelSource, VerifyInputs
from epctx.providers.base import Boundary, ExecutionProvider, PartitionedModel, Workspace
from epctx.providers.onnxruntime.whole_model import GeneratingModel
from epctx.stages.compile import CompiledGroup
from epctx.verification.folder import Providers, open_folder, read_proto, summarize
from epctx.verification.numbers import branches, pieces, recordings
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.recordings import Variant
from epctx.verification.numbers.sizes import open_names
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.tasks import obstacle

Values = Mapping[str, ort.OrtValue]
Compute = Callable[[str, Feeds, int, int], Mapping[str, Array]]
"""Runs a model, by name, on its generating sessions and an input set; returns outputs by name."""
Started = Callable[[str, str, int, int], None]
"""Receives model, EP, number of the input set and number of sets before a run: native code may
crash.
"""
_JOINT = (
    "the generating sessions do not fit together: one EP left nodes inside its partitions that "
    "another EP compiled, and the session of the first EP computes them on the CPU"
)


def prepare(
    models: Sequence[PartitionedModel], providers: Sequence[ExecutionProvider], scratch: Path
) -> dict[str, GeneratingModel] | None:
    """Return the models for their runs; None if no EP compiles with sessions that can run.

    Call this before the compile, which changes the models.
    """
    if not any(provider.native for provider in providers):
        return None
    return {model.name: GeneratingModel(model, scratch / "rest" / model.name) for model in models}


class Turn(Struct, frozen=True, kw_only=True):
    """One of several devices for which a group is run, one after the other.

    Attributes:
        name: the device in words; empty if there is only one, on which the sessions that compiled
            run.
    """

    name: str = ""
    index: int = 0
    of: int = 1

    def place(self, model: str) -> str:
        """Return the folder of a model's recorded outputs."""
        return f"{model}/alone_{self.index}" if self.name else model


def run(
    models: Mapping[str, GeneratingModel],
    compiled: CompiledGroup,
    group: ModelGroup,
    folder: Path,
    recorded: Path,
    started: Started,
    *,
    given: Path | None = None,
) -> tuple[Failure, ...] | None:
    """Run the generating sessions on the inputs of the manifest and keep their outputs.

    If one EP compiled nodes that another had left, or a model does not run, the reason is kept
    instead.

    Args:
        models: the models that `prepare` returned.
        group: the model group.
        folder: folder of the compile's outputs.
        recorded: folder of the recorded outputs.
        given: for pieces, folder of the sources' values, which the pieces get.

    Returns:
        Failures of models that a session cannot run. None if the sessions of an EP in use cannot
        run on this host, or if the files can be loaded here, which proves more.

    Raises:
        ModelError: an input file cannot be read.
        ManifestError: a range does not fit its input.
        StorageError: a file cannot be written.
    """
    used = {p.provider for model in compiled.partitioned for p in model.partitions}
    workspaces = {
        index: each
        for index, each in enumerate(compiled.workspaces)
        if index in used and each.cannot_run() is None
    }
    if workspaces.keys() != used:
        return None
    if group.verify.numbers == "full" and _loadable(group, list(models), folder):
        return None
    used_workspaces = list(workspaces.values())
    places = {name: name if given is None else place_of_piece(name) for name in models}
    for name in compiled.joint:
        recordings.refuse(recorded, places[name], _JOINT)
    alone = models.keys() - compiled.joint
    sources = [source for source in group.models if source.name in alone]

    def on_device(turn: Turn) -> tuple[Failure, ...]:
        def compute(name: str, feeds: Feeds, number: int, of: int) -> dict[str, Array]:
            def run_partition(partition: Partition, feeds: Values) -> Values:
                provider = group.execution_providers[partition.provider].provider
                started(name, provider, turn.index * of + number, turn.of * of)
                return workspaces[partition.provider].run(partition, feeds)

            return _outputs(models[name], feeds, run_partition)

        _keep_boundaries(places, recorded, used_workspaces, turn)
        if given is not None:
            own = {name: models[name] for name in models if name in alone}
            return _keep_pieces(own, given, recorded, compute)
        return _keep_outputs(sources, folder, recorded, group.verify.inputs, compute, turn)

    return _on_each_device(on_device, used_workspaces, sources, recorded)


def _keep_outputs(
    sources: Sequence[ModelSource],
    folder: Path,
    recorded: Path,
    settings: VerifyInputs,
    compute: Compute,
    turn: Turn,
) -> tuple[Failure, ...]:
    """Run models on the input sets that verify uses, and keep their outputs.

    Models for which no inputs can be made, or with open dimensions, are skipped here; verify
    reports why they are not checked.

    Returns:
        Failures of models that a session cannot run; they are kept, too.
    """
    input_sets = InputSets(settings)
    failures: list[Failure] = []
    for source in sources:
        file, place = context_file(source.name), turn.place(source.name)
        summary = summarize(file, read_proto(folder / file))
        inputs = SourceModel.read(source).fixed_inputs(summary)
        if input_sets.problems(inputs) or (input_sets.generated and open_names(inputs)):
            continue
        cases = list(input_sets.cases(inputs))
        with contextlib.suppress(Exception):  # the source's fault: its own run reports it
            cases += branches.reaching(source, inputs, cases, more=input_sets.generated)[1]
        for number, case in enumerate(cases, start=1):
            try:
                outputs = compute(source.name, case.feeds, number, len(cases))
            except CompileError as error:
                error.model = error.model or source.name
                failures.append(error.failure)
                recordings.refuse(recorded, place, f"{case.label}: {error.reason}")
                break
            recordings.write(recorded, place, case.feeds, outputs)
    return tuple(failures)


def _keep_pieces(
    models: Mapping[str, GeneratingModel], given: Path, recorded: Path, compute: Compute
) -> tuple[Failure, ...]:
    """Run pieces on the values that their sources computed; keep their outputs and the expected
    ones. A piece for which the source has no values is skipped.
    """
    failures: list[Failure] = []
    for label, model in models.items():
        name, place = label.rpartition(".")[0], place_of_piece(label)
        source = pieces.Values(given, name)
        cases = sorted(each.name for each in (given / source.place(0)).glob("*") if each.is_dir())
        for number, case in enumerate(cases, start=1):
            feeds = recordings.named(given, source.place(0), case) or {}
            all_feeds = feeds | source.read(feeds, model.inputs - feeds.keys())
            if not all_feeds.keys() >= model.inputs:
                continue
            try:
                outputs = compute(label, all_feeds, number, len(cases))
            except CompileError as error:
                error.model = error.model or label
                failures.append(error.failure)
                recordings.refuse(recorded, place, error.reason)
                break
            recordings.write(recorded, place, feeds, outputs)
            right = source.read(feeds, outputs)
            recordings.write(recorded, f"{place}/{pieces.RIGHT}", feeds, right)
    return tuple(failures)


def place_of_piece(label: str) -> str:
    """Return the folder of a piece's recorded outputs, by the label that it is compiled under."""
    model, _, number = label.rpartition(".")
    return f"{model}/{pieces.PIECES}/{number}"


def _on_each_device(
    run: Callable[[Turn], tuple[Failure, ...]],
    workspaces: Sequence[Workspace],
    sources: Sequence[ModelSource],
    recorded: Path,
) -> tuple[Failure, ...]:
    """Compile and `run` for one device after the other; return the failures."""
    failures: list[Failure] = []
    turns = _turns(workspaces)
    variants = [Variant(name=turn.name, place="", begun=False) for turn in turns]
    _keep_variants(recorded, sources, turns, variants)
    for turn in turns:
        try:
            misfit = _choose(workspaces, turn)
        except CompileError as error:
            failures.append(error.failure)
            break
        variants[turn.index] = replace(variants[turn.index], begun=True, misfit=misfit)
        _keep_variants(recorded, sources, turns, variants)
        failures += run(turn)
    return tuple(failures)


def _outputs(
    model: GeneratingModel, feeds: Feeds, run_partition: Callable[[Partition, Values], Values]
) -> dict[str, Array]:
    """Run a model, piece by piece, and return its outputs as arrays, by name."""

    def run(partition: Partition, feeds: Values) -> Values:
        results = run_partition(partition, feeds)
        # Copy the values: QNN's simulator treats OpenVINO's memory as its own, and fails.
        return {key: values.to_value(values.to_python(results[key])) for key in results}

    computed = model.run({key: values.to_value(array) for key, array in feeds.items()}, run)
    arrays = [values.to_python(each) for each in computed.values()]
    named = values.flat(list(computed), arrays, [model.kinds[each] for each in computed])
    return {key: np.asarray(value) for key, value in named}


def _turns(workspaces: Sequence[Workspace]) -> list[Turn]:
    """Return a turn for each device that the EPs compile for separately; one turn without a name if
    there are none.
    """
    names = [name for each in workspaces for name in each.variants()]
    turns = [Turn(name=name, index=index, of=len(names)) for index, name in enumerate(names)]
    return turns or [Turn()]


def _choose(workspaces: Sequence[Workspace], turn: Turn) -> str | None:
    """Compile for one device; return the difference of its graphs in the files, or None."""
    for each in workspaces:
        if turn.name in each.variants():
            return each.choose(turn.name)
    return None


def _keep_boundaries(
    places: Mapping[str, str], recorded: Path, workspaces: Sequence[Workspace], turn: Turn
) -> None:
    """Keep the boundaries of models, each in its place, if all EPs know theirs."""
    for name, place in places.items():
        boundaries: list[Boundary] = []
        for workspace in workspaces:
            own = workspace.boundaries(name)
            if own is None:
                return
            boundaries += own
        recordings.keep(recorded, turn.place(place), "boundaries", boundaries)


def _keep_variants(
    recorded: Path,
    sources: Sequence[ModelSource],
    turns: Sequence[Turn],
    variants: Sequence[Variant],
) -> None:
    """Keep the progress of the devices, if the turns have device names."""
    for source in sources if turns[0].name else ():
        placed = [
            replace(variant, place=turn.place(source.name))
            for turn, variant in zip(turns, variants, strict=True)
        ]
        recordings.keep(recorded, source.name, "variants", placed)


def _loadable(group: ModelGroup, models: Sequence[str], folder: Path) -> bool:
    """Tell whether this host can load the files, as far as its EPs know in advance."""
    built = open_folder(
        folder,
        providers=Providers.of_group(group.execution_providers),
        models=[context_file(name) for name in models],
    )
    sharing = len(models) > 1
    return all(obstacle(built, model, sharing=sharing) is None for model in built.models)
