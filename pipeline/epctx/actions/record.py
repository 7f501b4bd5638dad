"""Record: the sessions that compiled a group, run while they are open; their outputs are kept."""

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
    """The outcome of running the sessions that compile.

    Attributes:
        recorded: they were run.
        unrun: of each model that they did not run, why: the EP's fault if the source does run.
    """

    recorded: bool
    unrun: tuple[Failure, ...] = ()


class Record(Action[RecordResult], frozen=True, kw_only=True):
    """Run the sessions that compile a group, while they are open, and keep what they compute.

    Its result is one for all models and input sets, since the sessions are there in a compile only.

    Attributes:
        compile: the key of the compile; empty where nothing is stored.
        inputs: what the sessions are run with; None, as `budget` then: they are not to be run,
            whatever the inputs.
        numbers: full: they stand in for files that this host cannot load; generating.
        devices: what runs them.
        group: the model group.
        given: of a piece, where what the sources computed is kept (`numbers.pieces.PIECES`). It is
            not in the key: whatever values a piece is given, what is right is kept beside.
        folder: where the compile has put its outputs.
        recorded: where what they compute is kept.
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
        """Raises what `stages.record` raises."""
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
