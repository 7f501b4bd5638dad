"""Optimize: load a model, fix its sizes, and run the passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct
from msgspec.structs import replace

from epctx.actions.action import SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.files.regular import changed
from epctx.graph import native
from epctx.graph.model import PassRecord
from epctx.manifest import Level, ModelSource, OptimizeSettings

if TYPE_CHECKING:
    from epctx.keys.source_digests import SourceDigests
    from epctx.keys.toolchain import Toolchain

_FAILED = "onnx's shape inference crashed or did not finish:"
_NOTES: Final[Mapping[native.Reach, Sequence[str]]] = {
    "data": (),
    "types": (f"{_FAILED} shapes that follow from values are not known",),
    "nothing": (f"{_FAILED} only the shapes that the model declares are known",),
}


class OptimizeResult(Struct, frozen=True, kw_only=True):
    """Digest of an optimized model, and its passes.

    Attributes:
        digest: digest of the optimized graph and its weights' content.
        weights: number of weights, by kind (`graph.weights.tensors`).
        notes: notes as in `LoadedModel`.
    """

    digest: Digest
    passes: tuple[PassRecord, ...]
    weights: Mapping[str, int] = {}
    notes: tuple[str, ...] = ()


class Optimize(Action[OptimizeResult], frozen=True, kw_only=True):
    """Load and optimize one model; write it, weights by reference, to the new folder `folder`.

    Its name is not in the key: two names may share one model.

    Attributes:
        model: digest of the model file; empty to accept any content, without a key.
        data: digests of its external data files, in the order of their locations in the model
            file; their paths are not in the key.
        dimensions: symbolic dimension name to size, in elements.
        shapes: input name to its whole shape.
        level: none, basic, extended, or explicit.
        passes: with level explicit, the passes in order.
        source: the model with its path, and its name for messages.
        reach: extent of onnx's inference.
    """

    result = OptimizeResult
    kind = "optimize"
    code = Code(("stages/load.py", "stages/header.py", "stages/optimize.py"), SESSIONS)
    beside = ("source", "folder", "reach")
    writes = ("folder",)

    model: str = ""
    data: tuple[str, ...] = ()
    dimensions: Mapping[str, int]
    shapes: Mapping[str, tuple[int, ...]]
    level: Level
    passes: tuple[str, ...]
    source: ModelSource
    folder: Path = Path()
    reach: native.Reach = "data"

    @classmethod
    def of(
        cls,
        source: ModelSource,
        settings: OptimizeSettings,
        folder: Path = Path(),
        *,
        digests: SourceDigests | None = None,
    ) -> Optimize:
        """Return the optimize action of a model with these digests, if they are known."""
        return cls(
            model="" if digests is None else str(digests.model),
            data=() if digests is None else tuple(map(str, digests.data)),
            dimensions=source.dimensions,
            shapes=source.shapes,
            level=settings.level,
            passes=settings.passes,
            source=source,
            folder=folder,
        )

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Add third-party passes: name to package, version, digest.

        Raises:
            ManifestError: a pass does not exist.
        """
        return {"extensions": toolchain.passes(self.passes), **super().facts(toolchain)}

    def run(self, worker: WorkerContext) -> OptimizeResult:
        """Raises the errors of `stages.load` and `stages.optimize`; ModelError also if the model
        has other digests.
        """
        from epctx.graph import store
        from epctx.graph.weights import tensors
        from epctx.stages import load, optimize

        name = self.source.name
        with native.inferring(self.reach):
            worker.started(StageStarted(stage="load", model=name))
            loaded = load.run(self.source)
            digests = tuple(str(file.digest) for file in loaded.sources)
            if self.model and digests != (self.model, *self.data):
                raise changed(self.source.path)
            worker.started(StageStarted(stage="optimize", model=name))
            self.folder.mkdir(parents=True)
            settings = OptimizeSettings(level=self.level, passes=self.passes)
            optimized = optimize.run(loaded, settings, self.folder)
            if self.source.custom_ops is not None:  # it can change all that is made of the model
                both = (str(optimized.digest), digests[-1])
                optimized = replace(optimized, digest=digest.of_json(both))
            store.write(optimized, self.folder)
        return OptimizeResult(
            digest=optimized.digest,
            passes=optimized.passes,
            weights=tensors.counts_by_kind(optimized.model.graph.initializers.values()),
            notes=(
                *loaded.notes,
                *loaded.corrected(optimized.model.graph),
                *_NOTES[self.reach],
            ),
        )
