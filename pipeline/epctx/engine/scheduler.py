"""Building the groups that are not up to date: threads for session groups, workers for the work."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from epctx.engine.actions.base import Actions
from epctx.engine.actions.compile import Compiling
from epctx.engine.actions.verify import settle
from epctx.engine.group import Progress, Telling
from epctx.engine.last_keys import History
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import Place
from epctx.engine.plan import PlannedGroup, SessionGroup
from epctx.engine.state import Built, Ended, Made
from epctx.errors import EpctxError, Interrupted
from epctx.files import outputs
from epctx.worker.pool import Pool


class Build:
    """One build. Session groups are tasks of a thread pool; nothing is published.

    Args:
        jobs: how many session groups are worked on at a time.
        keep_going: go on when a group fails; else what runs is ended.
        variables: of the workers' environment.
    """

    def __init__(
        self,
        lookup: Lookup,
        history: History | None,
        place: Place,
        telling: Telling,
        *,
        jobs: int,
        keep_going: bool,
        variables: Mapping[str, str],
    ) -> None:
        self._place = place
        self._telling = telling
        self._keep_going = keep_going
        self._pool = Pool(work=place.work, logs=place.logs, variables=variables)
        self._actions = Actions(lookup, history, self._pool, place.work)
        self._compiling = Compiling(self._actions)
        self._threads = ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="epctx")
        self._lock = threading.Lock()
        self._stopping = False

    def run(self, groups: Sequence[PlannedGroup]) -> list[Built]:
        """Build the groups.

        Raises:
            Interrupted: the user asked to stop; no worker is left.
        """
        try:
            pending = [self._submit(Progress(planned, self._telling)) for planned in groups]
            left = set(pending)
            while left:
                # In short steps: a wait without an end cannot be interrupted on Windows.
                _, left = wait(left, timeout=0.2)
            self._threads.shutdown()
            self._pool.end()
        except KeyboardInterrupt:
            with self._lock:
                self._stopping = True
            self._pool.end(Ended("interrupted", remedy="run the command again"))
            self._threads.shutdown(cancel_futures=True)
            self._pool.end()  # whose folder of logs is empty only now
            raise Interrupted(
                "interrupted, nothing was published", remedy="run the command again"
            ) from None
        return [future.result() for future in pending]

    def _submit(self, progress: Progress) -> Future[Built]:
        planned = progress.planned
        self._place.staged(planned.target, planned.group.name).mkdir(parents=True)
        made = [
            self._threads.submit(self._session_group, progress, session)
            for session in planned.session_groups
        ]
        built: Future[Built] = Future()
        left = set(made)

        def finished(future: Future[Made]) -> None:
            with self._lock:
                left.discard(future)
                if not left and not self._stopping:
                    self._threads.submit(self._settle, progress, made, built)

        for future in list(made):
            future.add_done_callback(finished)
        return built

    def _session_group(self, progress: Progress, session: SessionGroup) -> Made:
        planned = progress.planned
        try:
            folder = self._place.staged(planned.target, planned.group.name)
            with outputs.refusals():
                return self._compiling.compile(progress, session, folder)
        except EpctxError as error:
            self._fail(error)
            raise

    def _settle(
        self, progress: Progress, futures: list[Future[Made]], built: Future[Built]
    ) -> None:
        """After the last session group of a group."""
        try:
            _raise_first(futures)
            made = tuple(future.result() for future in futures)
            with outputs.refusals():
                found = settle(self._actions, self._compiling, self._place, progress, made)
        except EpctxError as error:
            self._fail(error)
            if not isinstance(error, Ended):
                progress.tell("failed", detail=str(error))
            built.set_result(Built(planned=progress.planned, progress=progress, failure=error))
        except BaseException as error:
            built.set_exception(error)
        else:
            progress.tell("verified")
            built.set_result(
                Built(planned=progress.planned, progress=progress, made=made, verify=found)
            )

    def _fail(self, error: EpctxError) -> None:
        if not self._keep_going and not isinstance(error, Ended):
            self._pool.end(Ended("another group failed", remedy="see its error"))


def _raise_first(futures: Sequence[Future[Made]]) -> None:
    """Raise what failed, not what was ended because of it: that may come before in the order."""
    errors = [error for future in futures if (error := future.exception()) is not None]
    for error in errors:
        if not isinstance(error, Ended):
            raise error
