"""optimize: provider-independent passes over a loaded model (design section 7)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx_ir as ir

from epctx.errors import CompileError, EpctxError
from epctx.graph.model import LoadedModel, OptimizedModel, PassRecord
from epctx.graph.passes import edit, names, registry
from epctx.graph.passes.base import Counted
from epctx.graph.passes.scratch import Scratch
from epctx.graph.serde import canonical
from epctx.manifest import OptimizeSettings

MOST_ROUNDS = 32
"""Maximum number of repeats of passes that feed each other."""


def run(loaded: LoadedModel, settings: OptimizeSettings, scratch: Path) -> OptimizedModel:
    """Run the passes of a level, or those named, over `loaded.model`, which is changed in place.

    The meaning of the graph and the names and order of its inputs and outputs stay. Large weights
    are `MappedTensor`: of the source if no pass touched them, else of files in the existing folder
    `scratch`. A pass that ran several times has one record.

    Raises:
        ManifestError: a pass does not exist, or its package cannot be loaded.
        CompileError: a third party's pass failed, or changed the graph's inputs or outputs.
        StorageError: weights cannot be written to `scratch`.
    """
    registry.check(settings.passes)
    model, place = loaded.model, Scratch(scratch)
    runner = _Runner(model, place)
    steps = registry.steps(settings.passes if settings.level == "explicit" else [settings.level])
    if steps:
        edit.prepare(model)
        runner.step(registry.FIRST)
    for step in steps:
        if isinstance(step, str):
            runner.step(step)
        else:
            runner.loop(step)
    names.give_back(model)
    place.write_out(model)
    return OptimizedModel(
        name=loaded.name,
        model=model,
        passes=tuple(PassRecord(name=n, changed=c) for n, c in runner.records.items()),
        digest=canonical.digest(model),
    )


class _Runner:
    """Runs passes over one model and adds up their changes."""

    def __init__(self, model: ir.Model, scratch: Scratch) -> None:
        self._model = model
        self._scratch = scratch
        self.records: dict[str, dict[str, int]] = {}

    def loop(self, loop: registry.Loop) -> None:
        """Run passes until all of them, and the one that follows them, change nothing."""
        while self._repeat(loop.passes) and self.step(loop.follow):
            pass

    def _repeat(self, names: tuple[str, ...]) -> bool:
        """Run passes in turn until all of them, one after the other, change nothing."""
        changed = False
        unchanged = 0
        for name in names * MOST_ROUNDS:
            if self.step(name):
                changed, unchanged = True, 0
            elif (unchanged := unchanged + 1) == len(names):
                break
        return changed

    def step(self, name: str) -> bool:
        """Run one pass by name; return True if it changed something."""
        owner = registry.owner(name)
        graph_pass = registry.create(name, self._scratch)
        if owner is None:
            return self.once(name, graph_pass)
        signature = _signature(self._model)
        try:
            changed = self.once(name, graph_pass)
        except EpctxError:
            raise
        except Exception as error:  # third-party code may raise anything; the package is named
            raise failed(name, "failed", f"{type(error).__name__}: {error}") from error
        if _signature(self._model) != signature:
            raise failed(name, "changed the names of the graph's inputs or outputs", None)
        return changed

    def once(self, name: str, graph_pass: ir.passes.InPlacePass) -> bool:
        """Run one pass and add to its record."""
        result = graph_pass(self._model)
        changed: Mapping[str, int] = {"modified": 1} if result.modified else {}
        if isinstance(result, Counted):
            changed = result.changed
        record = self.records.setdefault(name, {})
        for kind, count in sorted(changed.items()):
            record[kind] = record.get(kind, 0) + count
        return result.modified


def _signature(model: ir.Model) -> tuple[tuple[str | None, ...], ...]:
    graph = model.graph
    return tuple(v.name for v in graph.inputs), tuple(v.name for v in graph.outputs)


def failed(name: str, what: str, why: str | None) -> CompileError:
    """Return the error of a third party's pass."""
    return CompileError(
        f"the pass of {registry.owner(name)} {what}",
        where=f"optimize pass {name}",
        why=why,
        remedy="report it to that package, or take the pass out of `optimize`",
    )
