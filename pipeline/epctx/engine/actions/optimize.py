"""Optimize actions of a build: find each in the cache, or run it and store its result."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.engine.actions.base import Actions, files_in
from epctx.engine.executor import WorkerLease
from epctx.engine.progress import GroupProgress
from epctx.engine.state import ModelState
from epctx.errors import CompileError, ModelError
from epctx.graph import places
from epctx.graph.native import REACHES
from epctx.graph.passes import registry
from epctx.manifest import ModelSource, OptimizeSettings


class _Model(Struct):
    """A model of this build, shared by session groups; `lock` guards the other fields."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    state: ModelState | None = None
    folder: Path | None = None
    failure: Exception | None = None


class Optimizing:
    """Optimizes each model once for all session groups. Thread-safe."""

    def __init__(self, actions: Actions) -> None:
        self._actions = actions
        self._lock = threading.Lock()
        self._models: dict[bytes, _Model] = {}

    def optimize(
        self, progress: GroupProgress, source: ModelSource, lease: WorkerLease
    ) -> ModelState:
        """Find or run the optimize action of a model.

        Args:
            progress: progress of its group.
            source: the model.
            lease: the worker that will compile the model, or one that compiles nothing. Optimizing
                does not change what the worker compiles afterwards (real-eps.md section 1).

        Raises:
            EpctxError: the job raised it; later calls for the same model raise it again.
        """
        settings = progress.planned.group.optimize
        model = self._model(source, settings)
        with model.lock:
            if model.failure is not None:
                raise model.failure
            try:
                if model.state is None:
                    model.state = self._optimize(progress, source, settings, model, lease)
            except Exception as error:
                model.failure = error
                raise
            return replace(model.state, source=source)

    def folder(self, progress: GroupProgress, state: ModelState, lease: WorkerLease) -> Path:
        """Return the folder of an optimized model: written by the job, or fetched from the cache.

        Raises:
            EpctxError: the job raised it. It runs again if the cache has lost its result.
        """
        model = self._model(state.source, progress.planned.group.optimize)
        with model.lock:
            if model.folder is None:
                model.folder = self._fetched(state)
            if model.folder is None:
                again = self._run(progress, state, model, lease)
                self._actions.did(progress, "optimize", state.source.name, again.key, ran=True)
                _refuse_other(state, again)
            assert model.folder is not None
            return model.folder

    def _model(self, source: ModelSource, settings: OptimizeSettings) -> _Model:
        # Names do not matter: one source under two names is optimized once.
        name = codec.encode((replace(source, name=""), settings))
        with self._lock:
            return self._models.setdefault(name, _Model())

    def _optimize(
        self,
        progress: GroupProgress,
        source: ModelSource,
        settings: OptimizeSettings,
        model: _Model,
        lease: WorkerLease,
    ) -> ModelState:
        def run(state: ModelState) -> ModelState:
            return self._run(progress, state, model, lease)

        def find() -> ModelState:
            lookup = self._actions.lookup
            lookup.sources.model(source)
            try:
                return lookup.model(source, settings)
            except ModelError:  # loading gives the best error message
                self._job(progress, ModelState(source=source), lease)
                raise

        state, _ = self._actions.once(progress, "optimize", source.name, find, run)
        return state

    def _run(
        self, progress: GroupProgress, state: ModelState, model: _Model, lease: WorkerLease
    ) -> ModelState:
        result, model.folder = self._job(progress, state, lease)
        assert state.optimize is not None
        files = files_in(model.folder, [model.folder], leaving_out=places.PLACES)
        stored = self._actions.store(
            state.optimize, "optimize", result, folder=model.folder, files=files
        )
        return replace(state, optimize=stored)

    def _job(
        self, progress: GroupProgress, state: ModelState, lease: WorkerLease
    ) -> tuple[OptimizeResult, Path]:
        source, settings = state.source, progress.planned.group.optimize
        self._actions.refuse_to_build(f"optimize of {source.name}")
        job = Optimize.of(source, settings, self._actions.new_folder("o"), digests=state.found)
        # Passes of other packages may change the process, so nothing is compiled in it.
        foreign = registry.foreign(settings.passes)
        with self._actions.shared_lease() if foreign else nullcontext(lease) as chosen:
            result = run(job, lambda job: progress.run(chosen, source.name, job))
        return result, job.folder

    def _fetched(self, state: ModelState) -> Path | None:
        cache = self._actions.lookup.cache
        if cache is None or state.found is None or state.optimize is None or not state.complete:
            return None
        assert state.optimize.stored is not None
        folder = self._actions.new_folder("o")
        folder.mkdir(parents=True)
        if not self._actions.fetch(state.optimize.stored, folder):
            return None
        where = {str(content): p for p, content in state.found.files(state.source).items()}
        try:
            places.write(folder, where)
        except (FileNotFoundError, msgspec.MsgspecError):
            # Each file matches its digest, so the action was stored without a valid model.
            cache.refuse(state.optimize.key, "has no valid optimized model")
            return None
        return folder


def _refuse_other(first: ModelState, again: ModelState) -> None:
    assert first.result is not None and again.result is not None
    if first.result.digest != again.result.digest:
        raise CompileError(
            "was optimized again, with a different result",
            model=first.source.name,
            why="the cache had lost the first result",
            remedy="a pass is not deterministic: report it to the package that has it",
        )


def run(job: Optimize, carry_out: Callable[[Optimize], OptimizeResult]) -> OptimizeResult:
    """Carry out an optimize action; repeat it with less shape inference if that ended the process.

    ONNX Runtime may accept a model on which onnx's inference crashes or never ends. Then onnx
    infers less, and ONNX Runtime infers the remaining shapes.

    Raises:
        ModelError: ONNX Runtime or onnx's checker ended the process.
        EpctxError: `carry_out` raised it.
    """
    for reach in REACHES:
        try:
            return carry_out(replace(job, reach=reach))
        except CompileError as error:
            if error.native is None:
                raise
            if error.native != "onnx's shape inference":
                raise _blamed(error, job) from error
            shutil.rmtree(job.folder, ignore_errors=True)
            failed = error
    raise failed


def _blamed(error: CompileError, job: Optimize) -> ModelError:
    return ModelError(
        f"{error.native} cannot process it: {error.what}",
        model=job.source.name,
        file=str(job.source.path),
        why=error.why,
        remedy=f"{error.remedy}; else make the model smaller, or report it to {_maker(error)}",
    )


def _maker(error: CompileError) -> str:
    return "ONNX Runtime" if error.native == "ONNX Runtime" else "onnx"
