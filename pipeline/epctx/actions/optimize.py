"""Optimize: a model is loaded, its sizes are fixed, and the passes run over it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted, WorkerContext
from epctx.files.digest import Digest
from epctx.graph import native
from epctx.graph.model import PassRecord, SourceFile
from epctx.manifest import Level, ModelSource, OptimizeSettings

if TYPE_CHECKING:
    from epctx.keys.source_digests import SourceDigests
    from epctx.keys.toolchain import Toolchain

_FAILED = "onnx's shape inference did not end on it, or crashed:"
_NOTES: Final[Mapping[native.Reach, Sequence[str]]] = {
    "data": (),
    "types": (f"{_FAILED} shapes that follow from values are not known",),
    "nothing": (f"{_FAILED} only the shapes that it declares are known",),
}


class OptimizeResult(Struct, frozen=True, kw_only=True):
    """The digest of an optimized model, and how it came about.

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

    Its name is not in the key: two names may share one model.

    Attributes:
        model: digest of the model file; empty: it was never loaded, so that the worker tells.
        data: digests of its external data files, in the order of their locations, which are in
            the model file; where they lie is not in the key.
        dimensions: symbolic dimension name to size, in elements.
        shapes: input name to its whole shape.
        level: none, basic, extended, or explicit.
        passes: with level explicit, the passes in order.
        extensions: of those passes, those of other packages: name to package, version, digest.
        source: where it is, and what messages call it.
        reach: how far onnx's inference may go on it.
    """

    result = OptimizeResult
    kind = "optimize"
    beside = ("source", "folder", "reach")
    writes = ("folder",)

    model: str = ""
    data: tuple[str, ...] = ()
    dimensions: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    level: Level
    passes: tuple[str, ...]
    extensions: Mapping[str, str] = {}
    source: ModelSource
    folder: Path = Path()
    reach: native.Reach = "data"

    @classmethod
    def of(cls, source: ModelSource, settings: OptimizeSettings, folder: Path = Path()) -> Optimize:
        """Return the optimize action of a model of which nothing is known but where it is."""
        return cls(
            dimensions=source.dimensions,
            shapes=source.shapes,
            level=settings.level,
            passes=settings.passes,
            source=source,
            folder=folder,
        )

    def known(self, found: SourceDigests, toolchain: Toolchain) -> Optimize:
        """Return it with the content of the model.

        Raises:
            ManifestError: a pass that does not exist.
        """
        return replace(
            self,
            model=str(found.model),
            data=tuple(map(str, found.data)),
            extensions=toolchain.passes(self.passes),
        )

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
            settings = OptimizeSettings(level=self.level, passes=self.passes)
            optimized = optimize.run(loaded, settings, self.folder)
            store.write(optimized, self.folder)
        return OptimizeResult(
            digest=optimized.digest,
            sources=loaded.sources,
            passes=optimized.passes,
            notes=(*loaded.notes, *_NOTES[self.reach]),
        )
