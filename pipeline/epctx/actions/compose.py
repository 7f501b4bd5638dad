"""Compose: built models are joined into one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from epctx.actions.action import RUNNING, SESSIONS, Action, Code, StageStarted, WorkerContext
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.keys.records import ComposedModel, InputsRecord
from epctx.manifest import Composition, ProviderSpec, Tolerance
from epctx.stages.report import CompositionReport
from epctx.verification.findings import FolderReport
from epctx.verification.request import Composed

if TYPE_CHECKING:
    from epctx.keys.toolchain import Toolchain


class ComposeResult(Struct, frozen=True, kw_only=True):
    """Files of a composition, without SHA256SUMS, and its wiring.

    Attributes:
        verify: report of the verification; None before it.
    """

    files: tuple[OutputFile, ...]
    report: CompositionReport
    verify: FolderReport | None = None


class Compose(Action[ComposeResult], frozen=True, kw_only=True):
    """Join built models into one. Its key covers joining, checks, runs and comparison.

    Attributes:
        name: name of the model.
        parts: parts in the order in which they run.
        outputs: the composition's outputs: name to part and output; None for all free ones.
        embed_mode: None to keep each part's.
        given: inputs of its runs; None if it does not run.
        numbers: full, off, or skipped by `--no-verify`.
        eps: EPs of its groups, whose devices run it.
        composed: the composition and its parts, with paths.
        contents: BLAKE3 digests of each group's files, by name.
        folder: empty folder for the composition.
    """

    result = ComposeResult
    kind = "compose"
    code = Code((*RUNNING, "stages/verify.py", "stages/compose.py"), SESSIONS)
    version = 2
    beside = ("eps", "composed", "contents", "folder")
    writes = ("folder",)

    name: str
    parts: tuple[ComposedModel, ...]
    outputs: Mapping[str, tuple[str, str]] | None
    embed_mode: int | None
    given: InputsRecord | None
    tolerance: Tolerance
    numbers: str
    eps: tuple[ProviderSpec, ...] = ()
    composed: Composed | None = None
    contents: Mapping[str, Mapping[str, Digest]] = {}
    folder: Path = Path()

    @classmethod
    def of(
        cls,
        composition: Composition,
        parts: Sequence[ComposedModel],
        inputs: InputsRecord | None,
        eps: Sequence[ProviderSpec],
    ) -> Compose:
        """Return the compose action of a composition, without folders.

        Args:
            parts: built parts.
            inputs: inputs of its runs; None if it does not run.
            eps: EPs of its groups.
        """
        settings, outputs = composition.verify, composition.outputs
        return cls(
            name=composition.name,
            parts=tuple(parts),
            outputs=None
            if outputs is None
            else {n: (o.part, o.output) for n, o in outputs.items()},
            embed_mode=composition.embed_mode,
            given=inputs,
            tolerance=settings.tolerance,
            numbers="skipped" if inputs is None and settings.numbers != "off" else settings.numbers,
            eps=tuple(eps),
        )

    def facts(self, toolchain: Toolchain) -> dict[str, Any]:
        """Add the devices that run it. Raises as `Toolchain.devices`."""
        return {"devices": toolchain.devices(self.eps), **super().facts(toolchain)}

    def run(self, worker: WorkerContext) -> ComposeResult:
        """Raises the errors of `stages.compose`."""
        from epctx.stages import compose

        assert self.composed is not None
        composition = self.composed.composition
        worker.started(StageStarted(stage="compose", model=composition.name))
        output = compose.run(self.composed, self.contents, self.folder)
        wired = output.wiring
        report = CompositionReport(
            parts={part.name: f"{part.group}/{part.model}" for part in composition.parts},
            links={str(port): str(origin) for port, origin in wired.links.items()},
            inputs={name: tuple(map(str, ports)) for name, ports in wired.inputs.items()},
            outputs={name: str(port) for name, port in wired.outputs.items()},
        )
        return ComposeResult(files=output.files, report=report)
