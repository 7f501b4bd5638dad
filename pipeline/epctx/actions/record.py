"""Record: run the sessions that compiled a group while they are open, and keep their outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.actions.compile import Compile
from epctx.errors import Failure
from epctx.keys.records import InputsRecord
from epctx.manifest import ModelGroup


class RecordResult(Struct, frozen=True, kw_only=True):
    """Outcome of running the sessions that compile.

    Attributes:
        recorded: true if they ran.
        unrun: failures of models that did not run; the EP is at fault if the source runs.
    """

    recorded: bool
    unrun: tuple[Failure, ...] = ()


class Record(Action[RecordResult], frozen=True, kw_only=True):
    """Run the sessions that compile a group, while they are open, and keep their outputs.

    One result covers all models and input sets, since the sessions exist only during a compile.

    Attributes:
        compile: the key of the compile; empty if nothing is stored.
        inputs: inputs of the sessions; None, and `budget` None, if the sessions are not run.
        numbers: full if the outputs replace those of files that this host cannot load, else
            generating.
        devices: devices that run them.
        group: the model group.
        given: for a piece, folder of the sources' values (`numbers.pieces.PIECES`). It is not in
            the key: the right outputs for these values are kept beside the recorded ones.
        folder: folder of the compile's outputs.
        recorded: folder for the recorded outputs.
    """

    result = RecordResult
    kind = "recording"
    version = 5
    code = Code((*RUNNING, "stages/record.py"), SESSIONS)
    beside = ("group", "given", "folder", "recorded")
    writes = ("recorded",)
    within = Compile
    bounded = True

    compile: str = ""
    inputs: InputsRecord | None = None
    numbers: str = ""
    budget: float | None = None
    devices: Mapping[str, str] = {}
    group: ModelGroup | None = None
    given: Path | None = None
    folder: Path = Path()
    recorded: Path = Path()

    def run(self, worker: WorkerContext) -> RecordResult:
        """Raises the errors of `stages.record`."""
        from epctx.stages import record

        live = worker.live
        if live.generating is None:
            return RecordResult(recorded=False)

        def started(model: str, provider: str, number: int, of: int) -> None:
            worker.started(
                StageStarted(stage="verify", model=model, provider=provider, number=number, of=of)
            )

        assert self.group is not None
        unrun = record.run(
            live.generating,
            live.compiled,
            self.group,
            self.folder,
            self.recorded,
            started,
            given=self.given,
        )
        return RecordResult(recorded=unrun is not None, unrun=unrun or ())
