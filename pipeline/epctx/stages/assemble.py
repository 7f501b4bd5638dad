"""After the pieces of models are compiled, assemble: what they became is joined, a file a model.

Source: spec/ep-context-design.md, several primary EPContext nodes in one model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import onnx_ir as ir

from epctx import codec
from epctx.files.outputs import OwnFile, context_file
from epctx.graph import epcontext
from epctx.graph.epcontext import is_epcontext
from epctx.graph.model import CutPlan, OptimizedModel, Replacement
from epctx.graph.partition import contexts, pieces, surgery
from epctx.graph.serde import canonical
from epctx.graph.weights.data_file import DataFile
from epctx.providers.base import ContextBinary
from epctx.stages.compile import CompiledGroup

_SIZE: Final = "max_size"


def run(
    optimized: Mapping[str, OptimizedModel],
    plans: Sequence[CutPlan],
    folders: Sequence[Path],
    binaries: Sequence[Sequence[str]],
) -> CompiledGroup:
    """Put what the pieces were compiled into in their place in the models, which are changed.

    Args:
        optimized: by name, in the session group's order.
        plans: of each, where it was cut.
        folders: of each piece, what its compile wrote.
        binaries: of each piece, its files that are context binaries.
    """
    for (name, model), plan in zip(optimized.items(), plans, strict=True):
        parts = pieces.divide(model.model, plan)
        files = (
            folder / context_file(f"{name}.{number}")
            for number, folder in enumerate(folders, start=1)
        )
        surgery.splice(
            model.model,
            [
                Replacement(partition=part, fragment=canonical.read_mapped(file))
                for part, file in zip(parts, files, strict=True)
            ],
        )
        contexts.bind_ends(model.model.graph)
        _tell_largest(model.model.graph)
        crossing = [cut.values for cut in plan.cuts]
        model.model.metadata_props[epcontext.PIECES] = codec.encode(crossing).decode()
    return CompiledGroup(
        models={name: model.model for name, model in optimized.items()},
        partitioned=(),
        binaries=tuple(
            _binary(folder / name)
            for folder, names in zip(folders, binaries, strict=True)
            for name in names
        ),
        workspaces=(),
    )


def _tell_largest(graph: ir.Graph) -> None:
    """Write the largest `max_size` of all contexts on the first node that has one, where a runtime
    looks for it; QNN writes none.
    """
    told = [node for node in graph if is_epcontext(node) and _SIZE in node.attributes]
    if told:
        largest = max(node.attributes[_SIZE].as_int() for node in told)
        told[0].attributes[_SIZE] = ir.AttrInt64(_SIZE, largest)


def _binary(path: Path) -> ContextBinary:
    def chunks() -> Iterator[memoryview]:
        return DataFile.open(path).chunks()

    return ContextBinary(name=path.name, chunks=chunks, file=OwnFile(path))
