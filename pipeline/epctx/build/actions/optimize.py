"""Optimize: a model is loaded, its sizes are fixed, and the passes run over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from msgspec import Struct

from epctx.build.action import Action, StageStarted, WorkerContext
from epctx.files.digest import Digest
from epctx.graph import native
from epctx.graph.model import PassRecord, SourceFile
from epctx.manifest import ModelSource, OptimizeSettings

_FAILED = "onnx's shape inference did not end on it, or crashed:"
_NOTES: Final[Mapping[native.Reach, Sequence[str]]] = {
    "data": (),
    "types": (f"{_FAILED} shapes that follow from values are not known",),
    "nothing": (f"{_FAILED} only the shapes that it declares are known",),
}


class OptimizeResult(Struct, frozen=True, kw_only=True):
    """What was found.

    Attributes:
        digest: of the optimized graph and its weights' content.
        sources: the files that it was read from, the model first.
        notes: as `LoadedModel` has them.
    """

    digest: Digest
    sources: tuple[SourceFile, ...]
    passes: tuple[PassRecord, ...]
    notes: tuple[str, ...] = ()


class Optimize(Action[OptimizeResult], frozen=True, kw_only=True):
    """Load and optimize one model; write it, weights by reference, to the new folder `folder`.

    Attributes:
        reach: how far onnx's inference may go on it.
    """

    result = OptimizeResult
    writes = ("folder",)

    source: ModelSource
    settings: OptimizeSettings
    folder: Path
    reach: native.Reach = "data"

    def run(self, worker: WorkerContext) -> OptimizeResult:
        """Raises what `stages.load` and `stages.optimize` raise."""
        from epctx.graph.optimized import store
        from epctx.stages import load, optimize

        name = self.source.name
        with native.inferring(self.reach):
            worker.started(StageStarted(stage="load", model=name))
            loaded = load.run(self.source)
            worker.started(StageStarted(stage="optimize", model=name))
            self.folder.mkdir(parents=True)
            optimized = optimize.run(loaded, self.settings, self.folder)
            store.write(optimized, self.folder)
        return OptimizeResult(
            digest=optimized.digest,
            sources=loaded.sources,
            passes=optimized.passes,
            notes=(*loaded.notes, *_NOTES[self.reach]),
        )
