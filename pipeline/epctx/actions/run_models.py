"""Run models on one input set and keep what they compute: sources, EPContext files, parts.

A source model runs on ONNX Runtime's CPU EP, EPContext models on their EPs. The models of a sharing
set are loaded together, and stay open for the runs that follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.files.outputs import context_file
from epctx.graph.epcontext import Cuts
from epctx.keys.records import InputsRecord, VerifiedModel
from epctx.manifest import ModelGroup, ModelSource, VerifyInputs
from epctx.verification.findings import FolderReport
from epctx.verification.request import VerifyRequest

if TYPE_CHECKING:
    from epctx.keys.toolchain import Toolchain
    from epctx.verification.folder import GroupFolder
    from epctx.verification.numbers.files import Feeding, Files


class SourceResult(Struct, frozen=True, kw_only=True):
    """Outcome of a source model on an input set; its outputs are in the action's folder.

    Attributes:
        made: files that it wrote, below the model's folder.
        ran: true if it had inputs, and this host can run it.
        unfed: reason why it does not run on generated inputs; None if it does.
    """

    made: tuple[str, ...] = ()
    ran: bool = True
    unfed: str | None = None


class RunSource(Action[SourceResult], frozen=True, kw_only=True):
    """Run a source model on one input set, and keep its outputs.

    Attributes:
        model: the source; None if nothing is stored.
        inputs: the input sets.
        index: number of the input set, from 0 on. One beyond the last is an extra set, which shows
            whether the outputs depend on inputs if there is only one set.
        reference: true to run the model's reference in its place.
        magnitudes: true to measure magnitudes of its values: its EPs may compute in a smaller type.
        cuts: cuts into pieces that run one after the other (`graph.epcontext.Cuts`); None for the
            cuts in `built`, if `pieces`.
        pieces: the manifest asks for pieces.
        devices: devices that run it.
        source: the model, with paths.
        settings: the input sets, with paths.
        built: its EPContext model, whose fixed shapes count; None before it is built.
        folder: folder for outputs.
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
    pieces: bool = False
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
        """Raises the errors of `SourceRuns`."""
        from epctx.verification.folder import read_proto, summarize
        from epctx.verification.numbers import recordings
        from epctx.verification.numbers.expected import SourceRuns

        worker.started(StageStarted(stage="source", model=f"{self.source.name} (source)"))

        def opened() -> SourceRuns:
            file = context_file(self.source.name)
            proto = None if self.built is None else read_proto(self.built)
            built = None if proto is None else summarize(file, proto, pieces=self.pieces)
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
        new_files = sorted(recordings.names(self.place) - before)
        return SourceResult(made=tuple(new_files), ran=runs.ran, unfed=unfed)


def of_group(
    group: ModelGroup,
    folder: Path,
    built: Path | None = None,
    *,
    magnitudes: bool = False,
    cuts: Mapping[str, Cuts] | None = None,
) -> Iterator[RunSource]:
    """Yield runs of a group's sources on all input sets; the cache stores none of them.

    Args:
        folder: folder for outputs.
        built: folder of the EPContext models; None before they are built.
        magnitudes: as in `RunSource`.
        cuts: cuts of models, by name; other models have the cuts in `built`.
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
                    pieces=group.pieces is not None,
                    source=source,
                    settings=settings,
                    built=file,
                    folder=folder,
                )


class RunResult(Struct, frozen=True, kw_only=True):
    """Outcome of a run of files; their outputs are in the action's folder.

    Attributes:
        made: files that were written, below the model's folder.
        ran: true if all outputs were computed; failed runs are repeated.
    """

    made: tuple[str, ...] = ()
    ran: bool = True


class RunFiles(Action[RunResult], frozen=True, kw_only=True):
    """Load models, run them on an input set, and keep findings and outputs.

    Attributes:
        compile: the key of the compiled files; empty if nothing is stored.
        outputs: digests of the files, by name.
        model: the source of the model that runs.
        inputs: the input sets.
        index: number of the input set, from 0 on; one beyond the last repeats the first; None for
            all.
        devices: devices that run it.
        only: name of that model; None for all models of the folder.
        golden: true to use the golden inputs in the folder.
        request: the folder, and facts about it.
        folder: folder for outputs: `request.kept.files`.
    """

    result = RunResult
    kind = "run"
    code = Code((*RUNNING, "stages/verify.py"), SESSIONS)
    beside = ("only", "golden", "request", "folder")
    writes = ("folder",)
    adds = ("folder",)
    bounded = True

    compile: str = ""
    outputs: Mapping[str, str] = {}
    model: VerifiedModel | None = None
    inputs: InputsRecord | None = None
    index: int | None = None
    devices: Mapping[str, str] = {}
    only: str | None = None
    golden: bool = False
    request: VerifyRequest
    folder: Path

    def run(self, worker: WorkerContext) -> RunResult:
        """Raises the errors of reading inputs and keeping outputs."""
        from epctx.verification.numbers import recordings
        from epctx.verification.numbers.files import LOADS

        def opened() -> _Opened:
            folder = _Opened(informed(self.request, worker), worker)
            worker.sessions.callback(folder.files.close)
            return folder

        request = self.request
        models = worker.opened((request.folder, request.models), opened)
        only = None if self.only is None else context_file(self.only)
        before = recordings.names(self.place)
        ran = models.files.run(models.feeding(golden=self.golden), only, self.index)
        new_files = recordings.names(self.place) - before
        if not self.index:  # a sharing set is loaded as a whole, before the first of its models
            new_files.update(recordings.names(self.place) & {f"{LOADS}.json"})
        return RunResult(made=tuple(sorted(new_files)), ran=ran)

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Add whether models in pieces are run as a whole: the result depends on it."""
        return {**super().facts(toolchain), "only_pieces": self.request.only_pieces}

    @property
    def place(self) -> Path:
        """Folder of the model's outputs, or of all models' outputs."""
        return self.folder / (self.only or "")


class RunParts(Action[RunResult], frozen=True, kw_only=True):
    """Run the parts of a composition one after the other, and keep the whole's expected outputs.

    Attributes:
        folder: folder for these outputs: `request.kept.source`.
    """

    result = RunResult
    writes = ("folder",)

    request: VerifyRequest
    folder: Path

    def run(self, worker: WorkerContext) -> RunResult:
        """Raises the errors of reading inputs and keeping outputs."""
        from epctx.stages import verify
        from epctx.verification.numbers import composed

        request = informed(self.request, worker)
        assert request.composed is not None and request.kept is not None

        def started(model: str, number: int, of: int) -> None:
            worker.started(StageStarted(stage="verify", model=model))

        folder = verify.opened(request)
        composed.run_parts(request.composed, folder, request.kept, request.earlier, started)
        return RunResult()


class _Opened:
    """A folder whose models are loaded and run."""

    def __init__(self, request: VerifyRequest, worker: WorkerContext) -> None:
        from epctx.stages import verify
        from epctx.verification.numbers.files import Files

        assert request.kept is not None

        def started(model: str, number: int, of: int) -> None:
            worker.started(StageStarted(stage="verify", model=model, number=number, of=of))

        self._request = request
        self._folder: GroupFolder = verify.opened(request)
        self._feeding: Feeding | None = None
        self.files: Files = Files(
            self._folder,
            request.kept,
            request.earlier,
            started,
            request.passed,
            request.only_pieces,
        )

    def feeding(self, *, golden: bool) -> Feeding:
        """Return the input sets of the models."""
        from epctx.verification.numbers.composed import Whole
        from epctx.verification.numbers.files import Feeding
        from epctx.verification.numbers.golden import Shipped
        from epctx.verification.numbers.policy import Fed

        if golden:
            return Shipped(self._folder)
        if self._feeding is None:
            request, group = self._request, self._request.group
            assert request.kept is not None
            if request.composed is not None:
                off = request.composed.composition.verify.numbers == "off"
                self._feeding = Feeding() if off else Whole(request.composed, request.kept)
            elif group is not None and group.verify.numbers == "full":
                self._feeding = Fed(self._folder, request.kept, request.earlier)
            else:
                self._feeding = Feeding()
        return self._feeding


def informed(request: VerifyRequest, worker: WorkerContext) -> VerifyRequest:
    """Return a request with this job's earlier findings about the folder."""
    reports = [each for each in worker.done if isinstance(each, FolderReport)]
    return replace(request, earlier=(*request.earlier, *(f for r in reports for f in r.findings)))
