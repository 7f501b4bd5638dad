"""A model written with its large weights in a file beside it, as the stage dump writes one."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir

from epctx.files import outputs
from epctx.files.outputs import OutputFile
from epctx.graph.serde import canonical, data_files


def write(
    model: ir.Model, path: Path, location: str, *, size_threshold: int = data_files.THRESHOLD
) -> tuple[OutputFile, ...]:
    """Write `path` and, before it, the data file at `location`, if a tensor goes out."""
    written = []
    file = data_files.place(model, location, size_threshold=size_threshold)
    if file is not None:
        (path.parent / file.location).parent.mkdir(exist_ok=True)
        written.append(outputs.write(path.parent / file.location, file.chunks()))
    return (*written, outputs.write(path, canonical.chunks(model)))
