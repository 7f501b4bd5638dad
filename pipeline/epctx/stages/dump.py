"""Stage 5, dump: a session group's files, canonical, each hashed in the pass that writes it."""

from __future__ import annotations

from pathlib import Path

from epctx import outputs
from epctx.graph import canonical
from epctx.manifest import ExternalInitializers
from epctx.outputs import GroupOutput
from epctx.stages.compile import CompiledGroup


def run(
    compiled: CompiledGroup,
    folder: Path,
    *,
    external_initializers: ExternalInitializers | None = None,
) -> GroupOutput:
    """Write `[model]_ctx.onnx` of each model, the context binaries and external initializers.

    The new files depend on nothing of the source (design section 6). The context binaries come
    first: what refers to a file is written after it.

    Raises:
        StorageError: the disk refuses.
        CompileError: a model would exceed protobuf's 2 GB, or two outputs have one name.
    """
    files = [outputs.write(folder / b.name, b.chunks()) for b in compiled.binaries]
    names: dict[str, str] = {}
    for name, model in compiled.models.items():
        if external_initializers is not None:
            files.extend(_move_initializers(name, model, folder, external_initializers))
        path = folder / f"{name}_ctx.onnx"
        files.append(outputs.write(path, canonical.chunks(model)))
        names[name] = path.name
    return GroupOutput(models=names, files=tuple(files))
