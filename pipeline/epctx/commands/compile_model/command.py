"""`epctx.compile_model`: ONNX Runtime's compile call, with the same bytes as a build."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import onnxruntime as ort

from epctx.arguments import checked
from epctx.commands import build
from epctx.commands.compile_model.request import (
    GROUP,
    NAME,
    Request,
    model_group,
    move,
    parsed_manifest,
    staging,
    write_manifest,
)
from epctx.commands.options import AnyPath, Existing, Written
from epctx.engine.options import BuildOptions
from epctx.errors import UsageError
from epctx.files.outputs import SUMS, context_file
from epctx.inference.options import SessionConfig, SessionOptions
from epctx.inference.selection import ProviderArgument
from epctx.manifest import OptionValue, PartitionSettings
from epctx.providers import registry

if TYPE_CHECKING:
    from epctx.commands.compile_model.sharing import Sharing


def compile_group(requests: Sequence[Request]) -> None:
    """Compile the sessions of a group, in order, in one separate process, and write all files.

    Raises:
        UsageError: two sessions have the same name.
        EpctxError: the compile failed; nothing is written.
    """
    names = [request.name for request in requests]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two sessions of a sharing group have the same name: {', '.join(names)}",
            remedy="give each an output of another name",
        )
    last = requests[-1]
    folder = last.output.parent
    with tempfile.TemporaryDirectory(prefix="epctx-") as scratch, staging(folder) as out:
        manifest = write_manifest(requests, Path(scratch))
        parsed_manifest(manifest)
        result = build.run(
            manifest,
            BuildOptions(out=out, jobs=1, numbers=False),
            listener=lambda event: None,
            allow_outside=True,
        )
        if result.failure is not None:
            raise result.failure
        built = out / NAME / "default" / GROUP
        models = {built / context_file(r.name): r.output for r in requests}
        other_files = [path for path in sorted(built.iterdir()) if path not in models]
        moves = {path: folder / path.name for path in other_files if path.name != SUMS}
        move({**moves, **models})


_LOCK = threading.Lock()
_open: list[Sharing] = []
"""Current sharing group of this process, as in the EPContext spec; empty outside of a group."""
_waiting: list[Request] = []
"""Sessions so far of the current sharing group, if its EPs need a fresh process."""


@checked
def compile_model(
    model: Annotated[AnyPath | bytes, Existing()],
    *,
    output: Annotated[AnyPath | None, Written()] = None,
    providers: Sequence[ProviderArgument] | None = None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None = None,
    session_options: ort.SessionOptions | SessionOptions | None = None,
    dimensions: Mapping[str, int] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    optimize: str | Sequence[str] = "basic",
    partition: PartitionSettings | None = None,
) -> Path:
    """Compile a model to an EPContext model and its context binary. No numbers are compared.

    ONNX Runtime's session options for EPContext models apply:

    - `ep.context_file_path`: path of the EPContext model, as `output`; default
      `<source>_ctx.onnx` beside the source; required for a model from bytes.
    - `ep.context_embed_mode`, `ep.context_node_name_prefix`,
      `ep.context_model_external_initializers_file_name`.
    - `ep.share_ep_contexts`: calls in one process share a context. The last call also sets
      `ep.stop_share_ep_contexts`; it writes the binary, which is named after the first model. For
      EPs that need a fresh process, the last call compiles all models and writes all files.
    - `session.model_external_initializers_file_folder_path`: folder of the external data of a model
      from bytes; default the current folder.

    Other entries of a mapping go to the EPs. The context binary, `<name>_<ep>.bin`, is beside the
    model; `<name>` is the model's file name without `_ctx.onnx`. Existing files are replaced.

    Args:
        model: path of the source, or its bytes.
        output: path of the EPContext model.
        providers: EPs in priority order: names, or pairs of name and options.
        provider_options: the options of `providers`, in the same order.
        session_options: an `onnxruntime.SessionOptions`, or session config entries.
        dimensions: sizes for symbolic dimensions, by name.
        shapes: whole shapes for graph inputs, by name.
        optimize: `none`, `basic`, `extended`, or a list of passes.
        partition: an `epctx.manifest.PartitionSettings`; default: nothing is kept off the EPs.

    Returns:
        The path of the EPContext model. The context binary of a sharing group does not exist before
        the last call.

    Raises:
        UsageError: an argument has a wrong type, options contradict each other, or the output would
            overwrite the source.
        ManifestError: an EP does not have an option, or does not accept its value.
        ModelError: the source or its external data is missing or broken.
        ProviderUnavailable: an EP is not installed.
        CompileError: an EP failed, or takes no node. The sharing group ends, and its files are
            removed.
        StorageError: the files cannot be written.
    """
    request = Request.of(
        model,
        output=output,
        config=SessionConfig.read(session_options),
        providers=providers,
        provider_options=provider_options,
        entries=session_options if isinstance(session_options, Mapping) else {},
        dimensions=dimensions or {},
        shapes=shapes or {},
        optimize=optimize,
        partition=partition or PartitionSettings(),
    )
    with _LOCK:
        return _compile(request)


def _compile(request: Request) -> Path:
    from epctx.commands.compile_model.sharing import Sharing

    if _needs_process(request):
        if _waiting:
            request.require_agreement(_waiting[0])
        _waiting.append(request)
        if request.is_last:
            group = list(_waiting)
            _waiting.clear()
            compile_group(group)
    elif not request.config.share:
        Sharing(request).session(request)
    else:
        sharing = _open.pop() if _open else Sharing(request)
        try:
            sharing.session(request)
        finally:
            if not sharing.closed:
                _open.append(sharing)
    return request.output


def _needs_process(request: Request) -> bool:

    with tempfile.TemporaryDirectory(prefix="epctx-") as folder:
        specs = model_group([request], Path(folder)).execution_providers
    return any(registry.is_isolated(spec) for spec in specs)
