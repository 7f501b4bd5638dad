"""Build the groups that are not up to date. Each session group is a task of a thread."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path

from msgspec.structs import replace

from epctx.engine.actions.base import Actions
from epctx.engine.actions.compile import Compiling
from epctx.engine.actions.numbers import Numbers
from epctx.engine.actions.verify import verify
from epctx.engine.executor import Cancelled, Scheduler
from epctx.engine.output.place import OutputPaths, contents_of
from epctx.engine.plan import SessionGroup
from epctx.engine.progress import Events, GroupProgress
from epctx.engine.state import GroupState, SessionState
from epctx.engine.wrong_numbers import explain
from epctx.errors import EpctxError
from epctx.files import outputs
from epctx.parsing import load
from epctx.verification.findings import on_inputs


class GroupBuilder:
    """Builds groups into staged folders; publishes nothing.

    Args:
        manifest: path of the manifest, for messages.
        keep_going: whether to go on when a group fails; otherwise running jobs are cancelled.
    """

    def __init__(
        self,
        actions: Actions,
        scheduler: Scheduler,
        place: OutputPaths,
        events: Events,
        *,
        manifest: Path,
        keep_going: bool,
    ) -> None:
        self._actions = actions
        self._scheduler = scheduler
        self._place = place
        self._events = events
        self._manifest = manifest
        self._keep_going = keep_going
        self._numbers = Numbers(actions, scheduler)
        self._compiling = Compiling(actions, scheduler, self._numbers)

    def run(self, groups: Sequence[GroupState]) -> list[GroupState]:
        """Build and verify the groups; the state of a group has its failure."""
        with self._scheduler as scheduler:
            submitted = [self._submit(scheduler, group) for group in groups]
            return scheduler.results(submitted)

    def _submit(self, scheduler: Scheduler, group: GroupState) -> Future[GroupState]:
        planned = group.planned
        progress = GroupProgress(planned, self._events)
        self._place.staged(planned.target, planned.group.name).mkdir(parents=True)
        staged = [
            scheduler.submit(self._session_group, progress, session)
            for session in planned.session_groups
        ]
        return scheduler.submit_after(staged, self._group, group, progress, staged)

    def _session_group(self, progress: GroupProgress, session: SessionGroup) -> SessionState:
        planned = progress.planned
        try:
            folder = self._place.staged(planned.target, planned.group.name)
            with outputs.refusals(), load.located(self._manifest):
                return self._compiling.compile(progress, session, folder)
        except EpctxError as error:
            self._fail(error)
            raise

    def _group(
        self, before: GroupState, progress: GroupProgress, futures: Sequence[Future[SessionState]]
    ) -> GroupState:
        """Verify a group after its last session group."""
        try:
            _raise_first(futures)
            staged = [future.result() for future in futures]
            with outputs.refusals():
                after = verify(self._actions, self._numbers, self._place, progress, staged)
            self._actions.note_seconds(progress)
        except EpctxError as error:
            self._fail(error)
            if not isinstance(error, Cancelled):
                if progress.found is not None:
                    error = explain(error, progress.found, before.planned, self._manifest)
                progress.emit("failed", detail=error.head)
                error.group = progress.label
            compiled = {session.session.label: session for session in _compiled(futures)}
            earlier = before.sessions or tuple(compiled.values())
            sessions = tuple(compiled.get(each.session.label, each) for each in earlier)
            return replace(before, sessions=sessions, progress=progress, failure=error)
        progress.emit("verified", detail=after.report.unrun or on_inputs(after.report.numbers))
        same = before.published is None and contents_of(before.files) == contents_of(after.files)
        return replace(after, published=None if same else "it was built again")

    def _fail(self, error: EpctxError) -> None:
        if not self._keep_going and not isinstance(error, Cancelled):
            why = Cancelled("another group failed", remedy="see its error")
            self._scheduler.executor.cancel(why)


def _compiled(futures: Sequence[Future[SessionState]]) -> Iterator[SessionState]:
    """Yield the session groups that were compiled."""
    for future in futures:
        if future.exception() is None:
            yield future.result()


def _raise_first(futures: Sequence[Future[SessionState]]) -> None:
    """Raise the first failure that is not a cancellation; cancelled jobs may come before it."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, Cancelled):
            raise error
