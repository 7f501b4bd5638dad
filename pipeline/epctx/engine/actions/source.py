"""The sources of a session group, run beside its compile, so that the right party is blamed.

An EP may compile for minutes what no runtime can run. The source is run by the worker that is to
verify the group and waits for it; what it gives is kept, and verification does not run it again.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from epctx.actions.numbers import RunSources, SourceResult
from epctx.engine.actions import checks
from epctx.engine.actions.base import Actions
from epctx.engine.executor import Cancelled, Lane
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import GroupProgress
from epctx.engine.state import SessionState
from epctx.errors import CompileError, EpctxError, Failure, ModelError
from epctx.manifest import ModelSource


class SourceRun:
    """The run of a session group's sources. `wait` and `judge` from the thread that compiles.

    Args:
        sources: of the session group, as it is built.
        lane: where it is run.
        compiling: where the group is compiled meanwhile: ended if a source does not run.
    """

    def __init__(
        self,
        progress: GroupProgress,
        session: SessionGroup,
        sources: tuple[ModelSource, ...],
        kept: Path,
        *,
        lane: Lane,
        compiling: Lane,
    ) -> None:
        self._progress = progress
        self._session = session
        self._lane = lane
        self._compiling = compiling
        settings = progress.planned.group.verify
        self._action = RunSources(sources=sources, settings=settings, folder=kept)
        self._done: Future[SourceResult] = Future()
        self._thread = threading.Thread(target=self._run, name="epctx-source")

    def start(self) -> None:
        """Start it, in a thread of its own."""
        self._thread.start()

    def wait(self) -> SourceResult:
        """What came of it.

        Raises:
            ModelError: a source does not run, on none of the inputs that were tried.
            EpctxError: what else the job raised.
        """
        return self._done.result()

    def end(self) -> None:
        """End it if it still runs: what it was for has failed."""
        if not self._done.done():
            self._lane.cancel(Cancelled("its compile failed", remedy="see its error"))
        self._thread.join()

    def _run(self) -> None:
        try:
            subject = self._session.label
            result = self._progress.run(self._lane, subject, self._action)
            self._lane.hand_on()
            self._done.set_result(result)
        except CompileError as error:  # nothing of an EP is in that process
            if error.starved:  # beside the compile; verification has the memory for itself
                self._done.set_result(SourceResult(unfed={}))
            else:
                self._fail(_crashed(error, self._session))
        except Cancelled as error:  # whoever ended it, or the build, has a reason of its own
            self._done.set_exception(error)
        except EpctxError as error:
            self._fail(error)
        except BaseException as error:  # a bug: whoever waits is told
            self._done.set_exception(error)

    def _fail(self, error: EpctxError) -> None:
        self._done.set_exception(error)
        self._compiling.cancel(error)


def judge(run: SourceRun | None, unrun: Sequence[Failure]) -> None:
    """Blame the EP for what its generating sessions did not run, if the sources run on that.

    Args:
        run: of the sources; None: nobody ran them.
        unrun: of each model that the generating sessions did not run, why.

    Raises:
        CompileError: the EP is to blame.
        EpctxError: as `SourceRun.wait` raises it.
    """
    unfed = {} if run is None else run.wait().unfed
    for failure in unrun:
        if failure.model not in unfed:
            raise CompileError.of(failure)


@contextmanager
def beside(
    actions: Actions, progress: GroupProgress, known: SessionState, kept: Path, compiling: Lane
) -> Iterator[SourceRun | None]:
    """Run the sources while the body compiles; None: nothing of the group is run, or they are run
    by verification, since its EPs compile in less time than another process takes to start.

    Args:
        known: the session group.
        kept: the folder that their outputs are kept in, for verification.
        compiling: where the body compiles.
    """
    group = progress.planned.group
    if not compiling.own or actions.lookup.inputs(group) is None:
        yield None
        return
    checks.expect(actions, progress)  # it compiles nothing: it needs no core of its own
    with checks.lane(actions, progress) as lane:
        lane.start()
        sources = tuple(model.source for model in known.models)
        run = SourceRun(progress, known.session, sources, kept, lane=lane, compiling=compiling)
        run.start()
        try:
            yield run
        finally:
            run.end()


def _crashed(error: CompileError, session: SessionGroup) -> ModelError:
    models = " and ".join(model.name for model in session.models)
    return ModelError(
        f"ONNX Runtime's CPU EP cannot run the source model: {error.what}",
        model=models,
        why=error.why,
        remedy="run the source model with onnxruntime alone, and correct it",
    )
