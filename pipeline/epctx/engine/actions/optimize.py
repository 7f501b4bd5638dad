"""The optimize actions of a build: found in the cache, or carried out by a worker and put there."""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.engine.actions import loading
from epctx.engine.actions.answer_checks import check_optimized
from epctx.engine.actions.base import Actions, files_in
from epctx.engine.executor import Lane
from epctx.engine.progress import GroupProgress
from epctx.engine.results import StoredOptimize
from epctx.engine.state import Optimized
from epctx.errors import CompileError
from epctx.graph.optimized import paths
from epctx.graph.passes import registry
from epctx.keys.source_digests import SourceDigests, identities
from epctx.manifest import ModelSource, OptimizeSettings

Ahead = Callable[[], None]
"""Is called before a job is sent."""


def alone() -> None:
    """Nothing is done ahead of a job."""


class _Model(Struct):
    """A model of this build, which several session groups may share; `lock` guards the rest."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    known: Optimized | None = None
    folder: Path | None = None
    failure: Exception | None = None


class Optimizing:
    """Optimizes each model once, whoever asks for it. Used by many threads."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._lock = threading.Lock()
        self._models: dict[bytes, _Model] = {}

    def optimize(
        self, progress: GroupProgress, source: ModelSource, lane: Lane, ahead: Ahead
    ) -> Optimized:
        """The optimize action of a model.

        Args:
            progress: of its group.
            source: the model.
            lane: of the session group that is to be compiled of it: its worker reads and optimizes
                the model, which leaves no trace in what it compiles (real-eps.md section 1); or of
                a worker that compiles nothing.
            ahead: is called if a job is to be carried out, before it is.

        Raises:
            EpctxError: what the job raised; also for who asks for the same model later.
        """
        settings = progress.planned.group.optimize
        model = self._model(source, settings)
        with model.lock:
            if model.failure is not None:
                raise model.failure
            try:
                if model.known is None:
                    model.known = self._optimize(progress, source, settings, model, lane, ahead)
            except Exception as error:
                model.failure = error
                raise
            return replace(model.known, source=source)

    def folder(self, progress: GroupProgress, known: Optimized, lane: Lane) -> Path:
        """The folder of an optimized model: what the job wrote, or a copy from the cache.

        Raises:
            EpctxError: what the job raised, which is run again if the cache has lost its result.
        """
        settings = progress.planned.group.optimize
        model = self._model(known.source, settings)
        with model.lock:
            if model.folder is None:
                model.folder = self._fetched(known)
            if model.folder is None:
                again = self._run(progress, known.source, settings, model, lane)
                self._actions.did(progress, "optimize", known.source.name, again.key, ran=True)
                _refuse_other(known, again)
            assert model.folder is not None
            return model.folder

    def _model(self, source: ModelSource, settings: OptimizeSettings) -> _Model:
        # The name reaches nothing: one source under two names is optimized once.
        name = codec.encode((replace(source, name=""), settings))
        with self._lock:
            return self._models.setdefault(name, _Model())

    def _optimize(
        self,
        progress: GroupProgress,
        source: ModelSource,
        settings: OptimizeSettings,
        model: _Model,
        lane: Lane,
        ahead: Ahead,
    ) -> Optimized:
        lookup = self._actions.lookup
        known = lookup.model(source, settings)
        ran = known.action is None
        if ran:
            key = None
            if lookup.cache is not None:
                key = known.key or lookup.unloaded(source, settings)
            with self._actions.alone(progress, source.name, key):
                known = lookup.model(source, settings)
                ran = known.action is None
                if ran:
                    ahead()
                    known = self._run(progress, source, settings, model, lane)
        self._actions.did(progress, "optimize", source.name, known.key, ran=ran)
        return known

    def _run(
        self,
        progress: GroupProgress,
        source: ModelSource,
        settings: OptimizeSettings,
        model: _Model,
        lane: Lane,
    ) -> Optimized:
        self._actions.refuse_to_build(f"optimize of {source.name}")
        lookup = self._actions.lookup
        folder = self._actions.new_folder("o")
        begun = time.time()
        job = Optimize.of(source, settings, folder)
        # What passes of others leave in a process nobody knows: nothing is compiled there.
        foreign = registry.foreign(settings.passes)
        with self._actions.shared_lane() if foreign else nullcontext(lane) as chosen:
            result = loading.optimize(job, lambda job: progress.run(chosen, source.name, job))
        check_optimized(result, source.name)
        model.folder = folder
        found = _found(source, result)
        known = lookup.optimized(source, settings, found)
        assert known.record is not None and known.key is not None
        action = self._actions.store(
            known.key,
            "optimize",
            known.record,
            StoredOptimize(digest=result.digest, passes=result.passes, notes=result.notes),
            folder=folder,
            files=files_in(folder, [folder], leaving_out=paths.PLACES),
        )
        if lookup.cache is not None:
            lookup.sources.remember(found)
            for path, content in found.files(source).items():
                lookup.cache.digests.remember_read(path, begun, content)
        return replace(known, action=action)

    def _fetched(self, known: Optimized) -> Path | None:
        cache = self._actions.lookup.cache
        if cache is None or known.action is None or known.found is None:
            return None
        folder = self._actions.new_folder("o")
        folder.mkdir(parents=True)
        if not self._actions.fetch(known.action, folder):
            return None
        where = {str(content): p for p, content in known.found.files(known.source).items()}
        try:
            paths.write(folder, where)
        except (FileNotFoundError, msgspec.MsgspecError):
            # Each file is what its digest says: the action never had those of a model.
            assert known.key is not None
            cache.refuse(known.key, "has no optimized model")
            return None
        return folder


def _found(source: ModelSource, result: OptimizeResult) -> SourceDigests:
    """The content of a source as the job read it."""
    model, *data = result.sources
    found = SourceDigests(
        model=model.digest,
        locations=tuple(file.location for file in data),
        data=tuple(file.digest for file in data),
    )
    return dataclasses.replace(found, seen=identities(source, found))


def _refuse_other(known: Optimized, again: Optimized) -> None:
    assert known.action is not None and again.action is not None
    if known.action.result.digest != again.action.result.digest:
        raise CompileError(
            "was optimized again, and came out different",
            model=known.source.name,
            why="the cache had lost what came out first",
            remedy="a pass is no function of the graph: report it to the package that has it",
        )
