"""Compose: built models are joined into one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from epctx.build.action import Action, StageStarted, WorkerContext
from epctx.files.digest import Digest
from epctx.files.outputs import OutputFile
from epctx.stages.report import CompositionReport
from epctx.verification.request import Composed


class ComposeResult(Struct, frozen=True, kw_only=True):
    """What was written, without SHA256SUMS; how it is wired."""

    files: tuple[OutputFile, ...]
    report: CompositionReport


class Compose(Action[ComposeResult], frozen=True, kw_only=True):
    """Join built models into one.

    Attributes:
        contents: of each group the BLAKE3 digests of its files, by name.
        folder: where the composition goes: empty.
    """

    result = ComposeResult
    writes = ("folder",)

    composed: Composed
    contents: Mapping[str, Mapping[str, Digest]]
    folder: Path

    def run(self, worker: WorkerContext) -> ComposeResult:
        """Raises what `stages.compose` raises."""
        from epctx.stages import compose

        composition = self.composed.composition
        worker.started(StageStarted(stage="compose", model=composition.name))
        found = compose.run(self.composed, self.contents, self.folder)
        wired = found.wiring
        report = CompositionReport(
            parts={part.name: f"{part.group}/{part.model}" for part in composition.parts},
            links={str(port): str(origin) for port, origin in wired.links.items()},
            inputs={name: tuple(map(str, ports)) for name, ports in wired.inputs.items()},
            outputs={name: str(port) for name, port in wired.outputs.items()},
        )
        return ComposeResult(files=found.files, report=report)
