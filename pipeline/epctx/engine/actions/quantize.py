"""The quantize actions of a build: between optimize and compile, a float model's quantized one.

The quantized model is a source as every other one from then on: it is loaded, optimized, compiled,
and what is compiled is compared with it; its own reference is the float model.
"""

from __future__ import annotations

import threading
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from epctx import codec
from epctx.actions.quantize import Quantize, QuantizeResult
from epctx.engine.actions.base import Actions, files_in
from epctx.engine.actions.optimize import Ahead, Optimizing, alone
from epctx.engine.executor import Lane
from epctx.engine.lookup import QUANTIZED, quantized_source
from epctx.engine.progress import GroupProgress
from epctx.engine.results import StoredQuantize, StoredRanges
from epctx.engine.state import Optimized, Quantized
from epctx.errors import CompileError
from epctx.keys import key, make
from epctx.manifest import ModelSource


class _Model(Struct):
    """A quantized model of this build, which groups may share; `lock` guards the rest."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    known: Quantized | None = None
    folder: Path | None = None
    failure: Exception | None = None


class Quantizing:
    """The models that session groups are compiled of, quantized where that is asked for.

    Each is made once, whoever asks for it. Used by many threads.
    """

    def __init__(self, actions: Actions, optimizing: Optimizing) -> None:
        self._actions = actions
        self._optimizing = optimizing
        self._lock = threading.Lock()
        self._models: dict[bytes, _Model] = {}

    def model(
        self, progress: GroupProgress, source: ModelSource, lane: Lane, ahead: Ahead
    ) -> Optimized:
        """A model of a group, optimized; quantized before, if the group is.

        Args:
            ahead: as of `Optimizing.optimize`.

        Raises:
            EpctxError: what a job raised; also for who asks for the same model later.
        """
        plain = self._optimizing.optimize(progress, source, lane, ahead)
        group = progress.planned.group
        if group.quantize is None:
            return plain
        model = self._model(progress, source)
        with model.lock:
            if model.failure is not None:
                raise model.failure
            try:
                if model.known is None:
                    model.known, model.folder = self._quantize(progress, plain, lane)
            except Exception as error:
                model.failure = error
                raise
        assert model.folder is not None
        made = quantized_source(source, group.quantize, model.folder)
        progress.quantized(made)
        known = self._optimizing.optimize(progress, made, lane, alone)
        return replace(known, quantized=model.known)

    def _model(self, progress: GroupProgress, source: ModelSource) -> _Model:
        group = progress.planned.group
        name = codec.encode((replace(source, name=""), group.optimize, group.quantize))
        with self._lock:
            return self._models.setdefault(name + group.preset.encode(), _Model())

    def _quantize(
        self, progress: GroupProgress, plain: Optimized, lane: Lane
    ) -> tuple[Quantized, Path]:
        lookup, group, name = self._actions.lookup, progress.planned.group, plain.source.name
        known = lookup.quantized(plain, group)
        folder = self._fetched(known)
        ran = folder is None
        if folder is None:
            with self._actions.alone(progress, name, known.key or known.calibration):
                known = lookup.quantized(plain, group)
                folder = self._fetched(known)
                ran = folder is None
                if folder is None:
                    known, folder = self._run(progress, plain, known, lane)
        self._actions.did(progress, "quantize", name, known.key, ran=ran)
        return known, folder

    def _fetched(self, known: Quantized) -> Path | None:
        """The quantized model from the cache; None: it is not there."""
        if known.action is None:
            return None
        folder = self._actions.new_folder("q")
        folder.mkdir(parents=True)
        return folder if self._actions.fetch(known.action, folder) else None

    def _run(
        self, progress: GroupProgress, plain: Optimized, known: Quantized, lane: Lane
    ) -> tuple[Quantized, Path]:
        lookup, group, name = self._actions.lookup, progress.planned.group, plain.source.name
        assert group.quantize is not None
        self._actions.refuse_to_build(f"quantize of {name}")
        folder = self._actions.new_folder("q")
        assert plain.action is not None
        asked = Quantize.of(
            group, plain.action.result.digest, known.samples, lookup.ranges_of(known)
        )
        job = replace(
            asked,
            name=name,
            optimized=self._optimizing.folder(progress, plain, lane),
            others=tuple(each for each in group.models if each.name != name),
            folder=folder,
        )
        # Its sessions leave something in a process: nothing is compiled there.
        with self._actions.shared_lane() as chosen:
            result = progress.run(chosen, name, job)
        self._check(result, folder, name)
        if result.ranges is not None and job.ranges is None:
            self._calibrated(known, name, result.ranges)
        known = lookup.quantized(plain, group)
        assert known.record is not None and known.key is not None
        model, *data = result.sources
        action = self._actions.store(
            known.key,
            "quantize",
            known.record,
            StoredQuantize(
                model=model.digest,
                locations=tuple(file.location for file in data),
                data=tuple(file.digest for file in data),
                report=result.report,
            ),
            folder=folder,
            files=files_in(folder, [folder]),
        )
        return replace(known, action=action), folder

    def _calibrated(self, known: Quantized, name: str, ranges: str) -> None:
        """Keep the ranges that were found: for this build, and for the next ones."""
        lookup = self._actions.lookup
        assert known.calibration is not None
        lookup.ranges.use(known.calibration, name, ranges)
        record = make.calibrate(known.calibration, lookup.toolchain)
        self._actions.store(key(record), "calibrate", record, StoredRanges(ranges=ranges))

    def _check(self, result: QuantizeResult, folder: Path, name: str) -> None:
        """A worker's answer is believed as far as the disk says the same."""
        made = {file.location: file.size for file in result.sources}
        there = {path.name: path.stat().st_size for path in folder.iterdir()}
        if made != there or QUANTIZED not in there:
            raise CompileError(
                "tells of other files than it wrote",
                model=name,
                remedy="report it: this is a bug of epctx",
            )
