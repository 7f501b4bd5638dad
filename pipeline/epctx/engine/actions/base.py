"""What all actions of a build need: locks, workers, scratch, and a place for results."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Protocol, TypeVar

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
from epctx.engine.state import Known, SessionState
from epctx.error_codes import Code
from epctx.errors import CompileError
from epctx.files.digest import Digest
from epctx.manifest import ModelGroup, ProviderSpec

R = TypeVar("R")


class _State(Protocol):
    """The state of an action, or of several that are carried out together."""

    @property
    def key(self) -> Digest | None:
        """The key whose OS lock is held while it is carried out."""
        ...

    @property
    def complete(self) -> bool:
        """Nothing is to be carried out."""
        ...


S = TypeVar("S", bound=_State)


class Actions:
    """The surroundings of a build's actions. Used by many threads.

    Args:
        lookup: of the build.
        memo: of its manifest.
        executor: carries out its jobs.
        work: its scratch.
        builds: models may be optimized and compiled; else only what is there is put together.
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
        """What is known of the runs of the models of session groups that are compiled."""
        compiled = {
            model.source.name: each.key
            for each in sessions
            if each.key is not None
            for model in each.models
        }
        cache = self.lookup.cache
        return RunTimes(records=None if cache is None else cache.records, compiled=compiled)

    def refuse_to_build(self, what: str) -> None:
        """Before something is made: whether anything may be.

        Raises:
            CompileError: what is in the cache is all that there is to be.
        """
        if not self._builds:
            raise CompileError(
                f"{what} is not in the cache any more, and nothing is built here",
                remedy="build it where its EPs are, and run the command again",
                code=Code.NOT_IN_CACHE,
            )

    def new_folder(self, letter: str) -> Path:
        """A path in the scratch that nothing has; kept short, for Windows."""
        return self.work / f"{letter}{next(self._numbers)}"

    def shared_lease(self, eps: Iterable[ProviderSpec] = ()) -> AbstractContextManager[WorkerLease]:
        """For jobs that whoever did other jobs with these EPs may do."""
        return self._executor.lease(None, tuple(eps))

    def lease(self, eps: Iterable[ProviderSpec], label: str) -> AbstractContextManager[WorkerLease]:
        """For jobs with these EPs, one after the other: of its own where one of them needs that."""
        specs = tuple(eps)
        return self._executor.lease(label if self.isolated(specs) else None, specs)

    def isolated(self, eps: Iterable[ProviderSpec]) -> bool:
        """Tell whether an EP needs a fresh process to compile."""
        return any(self.lookup.toolchain.traits(spec).isolated for spec in eps)

    def did(
        self, progress: Progress, action: str, subject: str, key: Digest | None, *, ran: bool
    ) -> None:
        """Note that an action was carried out, or was in the cache."""
        progress.did(action, subject, key, self.origin(key, ran=ran))
        if key is not None:
            self.note(progress, action, subject, key)

    def origin(self, key: Digest | None, *, ran: bool) -> Origin | None:
        """Where an action came from; None: it was carried out."""
        cache = self.lookup.cache
        return None if ran or cache is None or key is None else cache.origin(key)

    def note(self, progress: Progress, action: str, subject: str, key: Digest) -> None:
        """Remember the last key of an action."""
        self._memo.note_key(progress.label, action, subject, key)

    def note_seconds(self, progress: Progress) -> None:
        """Remember how long a group took that was compiled, and not found in the cache."""
        if progress.compiled:
            self._memo.note_seconds(progress.label, progress.seconds)

    def fetch(self, action: StoredAction[R], folder: Path) -> bool:
        """Copy an action's files from the cache into `folder`, as `Cache.fetch`.

        Raises:
            EpctxError: the build has ended meanwhile; the folder cannot be written.
        """
        cache = self.lookup.cache
        return cache is not None and cache.fetch(action, folder, self._executor.refuse_if_cancelled)

    @contextmanager
    def alone(self, progress: Progress, subject: str, key: Digest | None) -> Iterator[None]:
        """Carry out the action `key` while nobody else does; without a cache, at once.

        Raises:
            EpctxError: the build has ended meanwhile.
        """
        if self.lookup.cache is None or key is None:
            yield
            return
        waiting = progress.waiting(
            "another build is at the same", subject, self._executor.refuse_if_cancelled
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
        """Find the result of an action, or carry it out while nobody else does.

        Args:
            find: looks for it.
            make: carries it out, and puts it into the cache.

        Returns:
            Its state, which is complete, and whether it was carried out.

        Raises:
            EpctxError: what `find` and `make` raise.
        """
        known, ran = find(), False
        if not known.complete:
            with self.alone(progress, subject, known.key):
                known = find()
                ran = not known.complete
                known = make(known) if ran else known
        self.did(progress, kind, subject, known.key, ran=ran)
        return known, ran

    def store(
        self,
        known: Known[R],
        kind: str,
        result: R,
        *,
        folder: Path | None = None,
        files: Iterable[StoredFile] = (),
        keep: bool = True,
    ) -> Known[R]:
        """Put what an action made into the cache, if there is one; `files` lie in `folder`.

        Args:
            keep: False: the result counts for this build alone.

        Raises:
            StorageError: the cache cannot be written.
        """
        record = msgspec.Raw(codec.encode(known.record))
        stored = StoredAction(kind=kind, record=record, result=result, files=tuple(files))
        if keep and self.lookup.cache is not None:
            self.lookup.cache.put(known.key, stored, folder or self.work)
        return replace(known, stored=stored)

    def store_compiled(
        self,
        known: Known[CompileResult],
        kind: str,
        group: ModelGroup,
        result: CompileResult,
        folder: Path,
    ) -> Known[CompileResult]:
        """Put what was compiled into the cache, with the CPU of this machine where a real EP did
        it; its files lie in `folder`. Raises as `store`.
        """
        eps, toolchain = group.execution_providers, self.lookup.toolchain
        result = replace(result, cpu=toolchain.cpu(eps) if toolchain.native(eps) else None)
        files = [StoredFile(name=f.name, size=f.size, digest=f.blake3) for f in result.output.files]
        return self.store(known, kind, result, folder=folder, files=files)

    def store_recording(
        self,
        known: Known[RecordResult],
        group: ModelGroup,
        compiled: Digest,
        made: RecordResult,
        folder: Path,
    ) -> Known[RecordResult]:
        """Put what the sessions of a compile computed into the cache; it lies in `folder`. Raises
        as `store`.

        Args:
            compiled: the key of the compile.
        """
        if not made.recorded:
            known = self.lookup.find(self.lookup.recording(group, compiled, None), here=True)
        roots = [folder] if made.recorded else []
        files = [file for file in files_in(folder, roots) if ".part" not in file.name]
        return self.store(known, "recording", replace(made, unrun=()), folder=folder, files=files)


def files_in(folder: Path, roots: Sequence[Path], *, leaving_out: str = "") -> list[StoredFile]:
    """The files below `roots`, which are in `folder`, hashed."""
    found = (path for root in roots for path in sorted(root.rglob("*")))
    return stored_files(folder, (p for p in found if p.is_file() and p.name != leaving_out))


def stored_files(folder: Path, files: Iterable[Path]) -> list[StoredFile]:
    """Return files that are in a folder, hashed."""
    digests = FreshDigests()
    return [
        StoredFile(
            name=path.relative_to(folder).as_posix(),
            size=path.stat().st_size,
            digest=digests.of(path),
        )
        for path in files
    ]
