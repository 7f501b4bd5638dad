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


class RunResult(Struct, frozen=True, kw_only=True):
    """The files were run; what they computed is in the action's folder.

    Attributes:
        made: the files that were written, below the model's folder.
        ran: all of it was computed; what failed is tried again.
    """

    made: tuple[str, ...] = ()
    ran: bool = True


class RunFiles(Action[RunResult], frozen=True, kw_only=True):
    """Load models, run them on an input set, and keep what was found and computed.

    Attributes:
        compile: the key of what is run; empty where nothing is stored.
        outputs: digests of the files, by name.
        model: the source of the model that is run.
        inputs: the input sets.
        index: of the input set, from 0 on; beyond the last one, the first is run again; None: all.
        devices: what runs it.
        only: the name of that model; None: all models of the folder are run.
        golden: on the golden inputs in the folder.
        request: the folder, and what is known of it.
        folder: where what they compute is kept: `request.kept.files`.
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
        """Raises what reading inputs and keeping outputs raises."""
        from epctx.verification.numbers import recordings
        from epctx.verification.numbers.files import LOADS

        def opened() -> _Opened:
            made = _Opened(informed(self.request, worker), worker)
            worker.sessions.callback(made.files.close)
            return made

        request = self.request
        known = worker.opened((request.folder, request.models), opened)
        only = None if self.only is None else context_file(self.only)
        before = recordings.names(self.place)
        ran = known.files.run(known.feeding(golden=self.golden), only, self.index)
        made = recordings.names(self.place) - before
        if not self.index:  # a sharing set is loaded as a whole, before the first of its models
            made.update(recordings.names(self.place) & {f"{LOADS}.json"})
        return RunResult(made=tuple(sorted(made)), ran=ran)

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Return what else its result depends on: whether models in pieces are run as a whole."""
        return {**super().facts(toolchain), "only_pieces": self.request.only_pieces}

    @property
    def place(self) -> Path:
        """Folder of the model's outputs; of all models, if no single one is run."""
        return self.folder / (self.only or "")


class RunParts(Action[RunResult], frozen=True, kw_only=True):
    """Run the parts of a composition one after the other, and keep what the whole should give.

    Attributes:
        folder: where that is kept: `request.kept.source`.
    """

    result = RunResult
    writes = ("folder",)

    request: VerifyRequest
    folder: Path

    def run(self, worker: WorkerContext) -> RunResult:
        """Raises what reading inputs and keeping outputs raises."""
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
    """A folder whose models are run."""

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
        """Return the input sets that the models are run on."""
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
    """Return a request that knows what this job has found of the folder."""
    found = [each for each in worker.done if isinstance(each, FolderReport)]
    return replace(request, earlier=(*request.earlier, *(f for r in found for f in r.findings)))
