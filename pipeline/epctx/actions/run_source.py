"""Run source: a source model on one input set, on ONNX Runtime's CPU EP; its outputs are kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from msgspec import Struct

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.files.outputs import context_file
from epctx.graph.epcontext import Cuts
from epctx.keys.records import InputsRecord, VerifiedModel
from epctx.manifest import ModelGroup, ModelSource, VerifyInputs


class SourceResult(Struct, frozen=True, kw_only=True):
    """The outcome of a source model on an input set; what it computed is in the action's folder.

    Attributes:
        made: the files that it wrote, below the model's folder.
        ran: inputs could be made for it, and this host can run it.
        unfed: why it does not run on inputs that were generated; None if it does.
    """

    made: tuple[str, ...] = ()
    ran: bool = True
    unfed: str | None = None


class RunSource(Action[SourceResult], frozen=True, kw_only=True):
    """Run a source model on one input set, and keep its outputs.

    Attributes:
        model: the source; None where nothing is stored.
        inputs: the input sets.
        index: of the input set, from 0 on; beyond the last one, a set that tells beside a single
            one whether the outputs depend on inputs.
        reference: the model's reference is run in its place.
        magnitudes: those of its values are measured, too: its EPs may compute in a smaller type.
        cuts: where it is cut into pieces that run one after the other (`graph.epcontext.Cuts`);
            None: where `built` says it was, if it is known.
        devices: what runs it.
        source: the model, with paths.
        settings: the input sets, with paths.
        built: its EPContext model, whose fixed shapes count; None: it is not built yet.
        folder: where outputs are kept.
    """

    result = SourceResult
    kind = "source"
    code = Code(RUNNING, SESSIONS)
    beside = ("source", "settings", "built", "folder")
    writes = ("folder",)
    adds = ("folder",)
    bounded = True

    model: VerifiedModel | None = None
    inputs: InputsRecord | None = None
    index: int
    reference: bool = False
    magnitudes: bool = False
    cuts: Cuts | None = None
    devices: Mapping[str, str] = {}
    source: ModelSource
    settings: VerifyInputs
    built: Path | None = None
    folder: Path

    @property
    def place(self) -> Path:
        """Folder of the model's outputs."""
        return self.folder / self.source.name

    def run(self, worker: WorkerContext) -> SourceResult:
        """Raises what `SourceRuns` raises."""
        from epctx.verification.folder import read_proto, summarize
        from epctx.verification.numbers import recordings
        from epctx.verification.numbers.expected import SourceRuns

        worker.started(StageStarted(stage="source", model=f"{self.source.name} (source)"))

        def opened() -> SourceRuns:
            file = context_file(self.source.name)
            built = None if self.built is None else summarize(file, read_proto(self.built))
            cuts = built.cuts if self.cuts is None and built is not None else self.cuts
            return SourceRuns(
                self.source,
                self.settings,
                self.folder,
                built=built,
                reference=self.reference,
                magnitudes=self.magnitudes,
                cuts=None if self.reference else cuts,
            )

        runs = worker.opened((self.source, self.reference), opened)
        before = recordings.names(self.place)
        unfed = runs.run(self.index)
        made = sorted(recordings.names(self.place) - before)
        return SourceResult(made=tuple(made), ran=runs.ran, unfed=unfed)


def of_group(
    group: ModelGroup,
    folder: Path,
    built: Path | None = None,
    *,
    magnitudes: bool = False,
    cuts: Mapping[str, Cuts] | None = None,
) -> Iterator[RunSource]:
    """Yield the runs of a group's sources on all input sets; nothing is stored of them.

    Args:
        folder: where outputs are kept.
        built: the folder of the EPContext models; None: they are not built yet.
        magnitudes: as of `RunSource`.
        cuts: where models are cut into pieces, by name; of others, `built` says it.
    """
    settings = group.verify.inputs
    for source in group.models:
        file = None if built is None else built / context_file(source.name)
        if built is not None and (file is None or not file.is_file()):
            continue
        for reference in (False, True) if built is not None and source.reference else (False,):
            for index in range(settings.sets + 1):
                yield RunSource(
                    index=index,
                    reference=reference,
                    magnitudes=magnitudes and not reference,
                    cuts=None if reference else (cuts or {}).get(source.name),
                    source=source,
                    settings=settings,
                    built=file,
                    folder=folder,
                )
