"""Quantize actions of a build, between optimize and compile.

The quantized model is a source like any other: a build loads, optimizes and compiles it, and
compares its outputs with those of the compiled model. The quantized model's own reference is the
float model. `again` quantizes the models of a group outside of a build, to verify or preview the
group.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx.actions.optimize import Optimize
from epctx.actions.quantize import Quantize, QuantizeResult
from epctx.cache import StoredFile
from epctx.cache.digests import FileDigests
from epctx.engine.actions import optimize
from epctx.engine.actions.base import Actions, files_in
from epctx.engine.actions.optimize import Optimizing
from epctx.engine.executor import WorkerLease, one
from epctx.engine.lookup import QUANTIZED, quantized_source
from epctx.engine.progress import GroupProgress
from epctx.engine.ranges import Ranges
from epctx.engine.results import StoredRanges
from epctx.engine.state import ModelState, QuantizeState
from epctx.error_codes import Code
from epctx.errors import CompileError, ManifestError
from epctx.files.digest import Digest
from epctx.keys import key, records
from epctx.manifest import ModelGroup, ModelSource, QuantizeSettings


class _Model(Struct):
    """A quantized model of this build, shared by groups; `lock` guards the other fields."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    state: QuantizeState | None = None
    folder: Path | None = None
    failure: Exception | None = None


class Quantizing:
    """Makes the models that session groups compile, quantized if the group is. Each is made once.
    Thread-safe.
    """

    def __init__(self, actions: Actions, optimizing: Optimizing) -> None:
        self._actions = actions
        self._optimizing = optimizing
        self._lock = threading.Lock()
        self._models: dict[bytes, _Model] = {}

    def model(self, progress: GroupProgress, source: ModelSource, lease: WorkerLease) -> ModelState:
        """Make the optimized model that a group compiles; if the group is quantized, quantize
        first.

        Raises:
            EpctxError: a job raised it; later calls for the same model raise it again.
        """
        float_model = self._optimizing.optimize(progress, source, lease)
        group = progress.planned.group
        if group.quantize is None:
            return float_model
        model = self._model(progress, source)
        with model.lock:
            if model.failure is not None:
                raise model.failure
            try:
                if model.state is None:
                    model.state = self._quantize(progress, float_model, model, lease)
            except Exception as error:
                model.failure = error
                raise
        assert model.folder is not None
        quantized = quantized_source(source, group.quantize, model.folder)
        progress.quantized(quantized)
        state = self._optimizing.optimize(progress, quantized, lease)
        return replace(state, quantized=model.state)

    def _model(self, progress: GroupProgress, source: ModelSource) -> _Model:
        group = progress.planned.group
        unnamed = replace(source, name="")
        name = codec.encode((unnamed, group.optimize, group.quantize, group.pieces))
        with self._lock:
            return self._models.setdefault(name + group.preset.encode(), _Model())

    def _quantize(
        self, progress: GroupProgress, float_model: ModelState, model: _Model, lease: WorkerLease
    ) -> QuantizeState:
        def find() -> QuantizeState:
            state = self._actions.lookup.quantized(float_model, progress.planned.group)
            quantize = state.quantize
            if quantize is None or quantize.stored is None:
                return state
            model.folder = self._actions.new_folder("q")
            model.folder.mkdir(parents=True)
            if self._actions.fetch(quantize.stored, model.folder):
                return state
            return replace(state, quantize=replace(quantize, stored=None))

        def run(state: QuantizeState) -> QuantizeState:
            model.folder = self._actions.new_folder("q")
            return self._run(progress, state, model.folder, lease)

        quantize, _ = self._actions.once(progress, "quantize", float_model.source.name, find, run)
        return quantize

    def _run(
        self, progress: GroupProgress, state: QuantizeState, folder: Path, lease: WorkerLease
    ) -> QuantizeState:
        lookup, group, float_model = self._actions.lookup, progress.planned.group, state.plain
        name = float_model.source.name
        assert float_model.result is not None
        self._actions.refuse_to_build(f"quantize of {name}")
        action = Quantize.of(
            group, float_model.result.digest, state.samples, lookup.ranges_of(state)
        )
        job = replace(
            action,
            name=name,
            optimized=self._optimizing.folder(progress, float_model, lease),
            others=tuple(each for each in group.models if each.name != name),
            folder=folder,
        )
        # Calibration sessions change the process, so nothing is compiled in it.
        with self._actions.shared_lease() as chosen:
            result = progress.run(chosen, name, job)
        files = files_in(folder, [folder])
        _refuse_other(result, files, name)
        if result.ranges is not None and job.ranges is None:
            self._calibrated(state, name, result.ranges)
        quantize = lookup.quantized(float_model, group).quantize
        assert quantize is not None
        stored = self._actions.store(quantize, "quantize", result, folder=folder, files=files)
        return replace(state, quantize=stored)

    def _calibrated(self, state: QuantizeState, name: str, ranges: str) -> None:
        """Keep measured ranges for this build and later ones."""
        lookup = self._actions.lookup
        assert state.calibration is not None
        lookup.ranges.use(state.calibration, name, ranges)
        calibration = lookup.calibrated(state.calibration)
        self._actions.store(calibration, "calibrate", StoredRanges(ranges=ranges))


def _refuse_other(result: QuantizeResult, files: Sequence[StoredFile], name: str) -> None:
    """Refuse a worker's answer that differs from the files on disk."""
    listed = [(QUANTIZED, result.model), *zip(result.locations, result.data, strict=False)]
    complete = len(result.locations) == len(result.data) == len(files) - 1
    if not complete or sorted(listed) != sorted((file.name, file.digest) for file in files):
        raise CompileError(
            "the worker returned an invalid result: listed digests differ from the written files",
            model=name,
            remedy="report it: this is a bug of epctx",
        )


def again(
    group: ModelGroup,
    ranges: Ranges,
    digests: FileDigests,
    folder: Path,
    lease: WorkerLease,
    *,
    calibrate: bool = False,
) -> ModelGroup:
    """Return the group with its quantized sources; unchanged, if it is not quantized.

    Args:
        ranges: ranges of its manifest.
        digests: digests samples.
        folder: receives the quantized models; need not exist.
        lease: the worker that runs the jobs.
        calibrate: whether to measure unknown ranges, for a build that failed.

    Raises:
        ManifestError: the ranges of a model are unknown.
        EpctxError: a job raised it.
    """
    settings = group.quantize
    if settings is None:
        return group
    samples = [records.sample(path, digests) for path in settings.calibration.files]
    models = tuple(
        _model(group, settings, source, samples, ranges, folder / f"m{number}", lease, calibrate)
        for number, source in enumerate(group.models)
    )
    return replace(group, models=models)


def _model(
    group: ModelGroup,
    settings: QuantizeSettings,
    source: ModelSource,
    samples: Sequence[Digest],
    ranges: Ranges,
    folder: Path,
    lease: WorkerLease,
    calibrate: bool,
) -> ModelSource:
    optimized, quantized = folder / "o", folder / "q"
    job = Optimize.of(source, group.optimize, optimized)
    digest = optimize.run(job, lambda job: one(lease, job)).digest
    known_ranges = None
    if settings.calibrated:
        calibration = records.calibration(digest, group, samples)
        known_ranges = ranges.find(key(calibration))
        if known_ranges is None and not calibrate:
            raise ManifestError(
                "its quantization ranges are unknown",
                model=source.name,
                file=str(ranges.path),
                remedy="run `epctx build`, which measures and writes them",
                code=Code.CALIBRATION,
            )
    one(
        lease,
        replace(
            Quantize.of(group, digest, samples, known_ranges),
            name=source.name,
            optimized=optimized,
            others=tuple(each for each in group.models if each.name != source.name),
            folder=quantized,
        ),
    )
    return quantized_source(source, settings, quantized)
