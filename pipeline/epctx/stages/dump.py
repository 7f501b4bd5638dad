"""Stage 5, dump: a session group's files, canonical, each hashed in the pass that writes it."""

from __future__ import annotations

from pathlib import Path

from epctx.files import outputs
from epctx.files.outputs import GroupOutput, OutputFile
from epctx.graph.serde import canonical, data_files
from epctx.manifest import ExternalInitializers
from epctx.providers.base import ContextBinary
from epctx.stages.compile import CompiledGroup


def run(
    compiled: CompiledGroup,
    folder: Path,
    *,
    external_initializers: ExternalInitializers | None = None,
) -> GroupOutput:
    """Write `[model]_ctx.onnx` of each model, the context binaries and external initializers.

    The new files depend on nothing of the source (design section 6). What refers to a file is
    written after it. External initializers are written here, never by an EP: ONNX Runtime lets two
    models overwrite each other's (real-eps.md section 15). What shape inference reads stays in the
    model, whatever the threshold. Where nothing is said of them, large ones that several models of
    the session group have in common go into one file.

    Raises:
        StorageError: the disk refuses, or a file of that name is there.
        CompileError: what is left in a model is more than protobuf's 2 GB.
    """
    files = [_binary(folder, binary) for binary in compiled.binaries]
    names: dict[str, str] = {}
    shared = None
    if external_initializers is None:
        first = next(iter(compiled.models))
        shared = data_files.place_shared(list(compiled.models.values()), outputs.data_file(first))
    if shared is not None:
        files.append(outputs.write(folder / shared.location, shared.chunks()))
    for name, model in compiled.models.items():
        if external_initializers is not None:
            file = data_files.place(
                model,
                external_initializers.file.replace("{model}", name),
                size_threshold=external_initializers.size_threshold,
                keep=data_files.inference_may_read,
            )
            if file is not None:
                files.append(outputs.write(folder / file.location, file.chunks()))
        path = folder / outputs.context_file(name)
        files.append(outputs.write(path, canonical.chunks(model)))
        names[name] = path.name
    return GroupOutput(models=names, files=tuple(files))


def _binary(folder: Path, binary: ContextBinary) -> OutputFile:
    path = folder / binary.name
    taken = None if binary.file is None else binary.file.take(path)
    return taken or outputs.write(path, binary.chunks())
