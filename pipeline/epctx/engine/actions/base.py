"""Services that all actions of a build use: locks, workers, scratch folders, stored results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from epctx import codec
from epctx.actions.compile import CompileResult
from epctx.actions.record import RecordResult
from epctx.cache import StoredAction, StoredFile
from epctx.cache.action import Origin
from epctx.cache.digests import FreshDigests
from epctx.engine.executor import Executor, WorkerLease
from epctx.engine.lookup import Lookup
from epctx.engine.progress import GroupProgress, Progress, RunTimes
from epctx.engine.staleness import Memo
from epctx.engine.state import ActionState, Known, SessionState
from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.files.digest import Digest
from epctx.manifest import ModelGroup, ProviderSpec

R = TypeVar("R")


S = TypeVar("S", bound=ActionState[Any] | Known[Any])


class Actions:
    """Services for the actions of one build. Thread-safe.

    Args:
        lookup: makes keys and finds results.
        memo: records of earlier builds of the manifest.
        executor: runs the jobs.
        work: scratch folder.
        builds: whether models may be optimized and compiled; otherwise only cached results are
            used.
    """

    def __init__(
        self,
        lookup: Lookup,
        memo: Memo,
        executor: Executor,
        work: Path,
        *,
        builds: bool = True,
    ) -> None:
        self.lookup = lookup
        self._memo = memo
        self.work = work
        self._executor = executor
        self._numbers = itertools.count()
        self._builds = builds

    def pace(self, sessions: Iterable[SessionState]) -> RunTimes:
        """Return the run times of the models of compiled session groups."""
        compiled = {
            model.source.name: each.key
            for each in sessions
            if each.key is not None
            for model in each.models
        }
        cache = self.lookup.cache
        return RunTimes(records=None if cache is None else cache.records, compiled=compiled)

    def refuse_to_build(self, what: str) -> None:
        """Refuse to build `what` if only cached results may be used.

        Raises:
            CompileError: nothing may be built.
        """
        if not self._builds:
            raise CompileError(
                f"{what} is no longer in the cache, and --from-cache builds nothing",
                remedy="build it on a host with its EPs, and run the command again",
                code=Code.NOT_IN_CACHE,
            )

    def new_folder(self, letter: str) -> Path:
        """Return an unused path in the scratch folder. It is short, since Windows limits paths."""
        return self.work / f"{letter}{next(self._numbers)}"

    def shared_lease(self, eps: Iterable[ProviderSpec] = ()) -> AbstractContextManager[WorkerLease]:
        """Lease a worker that may have run other jobs with these EPs."""
        return self._executor.lease(None, tuple(eps))

    def lease(self, eps: Iterable[ProviderSpec], label: str) -> AbstractContextManager[WorkerLease]:
        """Lease a worker for jobs with these EPs: a fresh one if an EP needs isolation, else a
        shared one.
        """
        specs = tuple(eps)
        return self._executor.lease(label if self.isolated(specs) else None, specs)

    def isolated(self, eps: Iterable[ProviderSpec]) -> bool:
        """Tell whether an EP needs a fresh process to compile."""
        return any(self.lookup.toolchain.traits(spec).isolated for spec in eps)

    def did(
        self, progress: Progress, action: str, subject: str, key: Digest | None, *, ran: bool
    ) -> None:
        """Record that an action ran, or that its result was in the cache."""
        progress.did(action, subject, key, self.origin(key, ran=ran))
        if key is not None:
            self.note(progress, action, subject, key)

    def origin(self, key: Digest | None, *, ran: bool) -> Origin | None:
        """Return the origin of a cached result; None if the action ran, or without a cache."""
        cache = self.lookup.cache
        return None if ran or cache is None or key is None else cache.origin(key)

    def note(self, progress: Progress, action: str, subject: str, key: Digest) -> None:
        """Remember the last key of an action."""
        self._memo.note_key(progress.label, action, subject, key)

    def note_seconds(self, progress: Progress) -> None:
        """Remember the build time of a group, unless a compile was in the cache."""
        if progress.compiled:
            self._memo.note_seconds(progress.label, progress.seconds)

    def fetch(self, action: StoredAction[R], folder: Path) -> bool:
        """Copy an action's files from the cache into `folder`, as `Cache.fetch`.

        Raises:
            EpctxError: the build was cancelled; the folder cannot be written.
        """
        cache = self.lookup.cache
        return cache is not None and cache.fetch(action, folder, self._executor.refuse_if_cancelled)

    @contextmanager
    def alone(self, progress: Progress, subject: str, key: Digest | None) -> Iterator[None]:
        """Hold the OS lock of the action `key`; do nothing without a cache or a key.

        Raises:
            EpctxError: the build was cancelled while it waited.
        """
        if self.lookup.cache is None or key is None:
            yield
            return
        waiting = progress.waiting(
            "another build is running the same action", subject, self._executor.refuse_if_cancelled
        )
        with self.lookup.cache.alone_on(key, waiting):
            yield

    def once(
        self,
        progress: GroupProgress,
        kind: str,
        subject: str,
        find: Callable[[], S],
        make: Callable[[S], S],
    ) -> tuple[S, bool]:
        """Find the result of an action; if there is none, run the action under its OS lock.

        Args:
            find: looks up the state.
            make: runs the action and stores its result.

        Returns:
            The complete state, and whether the action ran.

        Raises:
            EpctxError: `find` or `make` raised it.
        """
        state, ran = find(), False
        if not state.complete:
            with self.alone(progress, subject, state.key):
                state = find()
                ran = not state.complete
                state = make(state) if ran else state
        self.did(progress, kind, subject, state.key, ran=ran)
        return state, ran

    def store(
        self,
        state: Known[R],
        kind: str,
        result: R,
        *,
        folder: Path | None = None,
        files: Iterable[StoredFile] = (),
        keep: bool = True,
    ) -> Known[R]:
        """Store the result of an action and its `files` in the cache, if there is one.

        Args:
            folder: contains the files.
            keep: False to use the result in this build only.

        Raises:
            StorageError: the cache cannot be written.
        """
        record = msgspec.Raw(codec.encode(state.record))
        stored = StoredAction(kind=kind, record=record, result=result, files=tuple(files))
        if keep and self.lookup.cache is not None:
            self.lookup.cache.put(state.key, stored, folder or self.work)
        return replace(state, stored=stored)

    def store_compiled(
        self,
        state: Known[CompileResult],
        kind: str,
        group: ModelGroup,
        result: CompileResult,
        folder: Path,
    ) -> Known[CompileResult]:
        """Store the compiled files in `folder`, with the CPU if a real EP compiled them. Raises as
        `store`.
        """
        eps, toolchain = group.execution_providers, self.lookup.toolchain
        result = replace(result, cpu=toolchain.cpu(eps) if toolchain.native(eps) else None)
        files = [StoredFile(name=f.name, size=f.size, digest=f.blake3) for f in result.output.files]
        return self.store(state, kind, result, folder=folder, files=files)

    def store_recording(
        self,
        state: Known[RecordResult],
        group: ModelGroup,
        compiled: Digest,
        result: RecordResult,
        folder: Path,
    ) -> Known[RecordResult]:
        """Store the recorded outputs of a compile's sessions. Raises as `store`.

        Args:
            compiled: the key of the compile.
            folder: contains the outputs.
        """
        if not result.recorded:
            state = self.lookup.find(self.lookup.recording(group, compiled, None), here=True)
        roots = [folder] if result.recorded else []
        files = [file for file in files_in(folder, roots) if ".part" not in file.name]
        return self.store(state, "recording", replace(result, unrun=()), folder=folder, files=files)


def files_in(folder: Path, roots: Sequence[Path], *, leaving_out: str = "") -> list[StoredFile]:
    """Hash the files below `roots`, which are in `folder`."""
    paths = (path for root in roots for path in sorted(root.rglob("*")))
    return stored_files(folder, (p for p in paths if p.is_file() and p.name != leaving_out))


def stored_files(folder: Path, files: Iterable[Path]) -> list[StoredFile]:
    """Hash files that are in a folder."""
    digests = FreshDigests()
    return [
        StoredFile(
            name=path.relative_to(folder).as_posix(),
            size=path.stat().st_size,
            digest=digests.of(path),
        )
        for path in files
    ]
