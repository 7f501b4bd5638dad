"""Running models for numbers: the source on ONNX Runtime's CPU EP, the EPContext model on its EPs.

The source runs in a stock session with the optimizations of every session, because users compare
with that. Without them, a ResNet-50 differs by 6e-5 of the largest magnitude (`unoptimized` says
when the source runs without them, too). Prepacking would copy every weight into memory, so it is
off unless numbers depend on it. External data stays mapped.

ONNX Runtime's errors pass through; they have no common class.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.files import paths
from epctx.graph import native, numerics
from epctx.graph.inputs import Array
from epctx.graph.serde import protos, reader
from epctx.graph.weights.external_data import DataFolder
from epctx.inference import values
from epctx.inference.feeds import Feeds
from epctx.inference.loading import SHARED
from epctx.inference.options import FILE_PATH
from epctx.inference.session import Session
from epctx.inference.values import NodeArg
from epctx.manifest import DEFAULT_EP, ModelSource
from epctx.providers.base import ExecutionProvider
from epctx.text import first_line

_BEYOND_NUMPY = ("bfloat16", "float8")
"""Element types that `run` of onnxruntime does not take or give (onnxruntime 1.31.1)."""

_DATA_FOLDER = "session.model_external_initializers_file_folder_path"
_PRECISE = "session.x64quantprecision"


class NotComparable(Exception):
    """An output has no numbers to compare; the text says which output."""


def open_source(
    source: ModelSource,
    *,
    threads: int = 0,
    spins: bool = True,
    prepacks: bool | None = None,
    level: ort.GraphOptimizationLevel = ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
    changed: bytes | None = None,
    silent: bool = False,
) -> ort.InferenceSession:
    """Open a session of a source model, by path, with external weights mapped.

    Args:
        source: the model.
        threads: number of threads; 0 for one on each core.
        spins: waiting threads keep their cores busy for a while, which slows other work.
        prepacks: the model's numbers may depend on the layout of weights; None to find that out.
        level: optimizations of ONNX Runtime; all of them in a stock session.
        changed: model to open in place of the file, with data in `data_folder`.
        silent: failed runs are not logged.
    """
    options = native.session_options()
    options.log_severity_level = 4 if silent else 3
    options.intra_op_num_threads = threads
    options.graph_optimization_level = level
    if prepacks is None:
        prepacks = numerics.depends_on_prepacking(reader.read(source.path))
    if not prepacks:
        options.add_session_config_entry("session.disable_prepacking", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", str(int(spins)))
    for name, size in source.dimensions.items():
        options.add_free_dimension_override_by_name(name, size)
    model: str | bytes = str(source.path)
    if changed is not None or source.external_data_dir not in (None, source.path.parent):
        # By path, ONNX Runtime looks for external data beside the model and nowhere else.
        options.add_session_config_entry(_DATA_FOLDER, str(data_folder(source)))
        model = source.path.read_bytes() if changed is None else changed
    # Without VNNI, x86 saturates sums of products of uint8 and int8. With extended optimizations,
    # this option prevents that. For some models it gives two nodes the same name and fails, so it
    # is turned off then (onnxruntime 1.32.0: BERT and ViT in QDQ form).
    options.add_session_config_entry(_PRECISE, "1")
    try:
        return ort.InferenceSession(model, options, providers=[DEFAULT_EP])
    except Exception:  # onnxruntime's errors have no common class
        options.add_session_config_entry(_PRECISE, "0")
        return ort.InferenceSession(model, options, providers=[DEFAULT_EP])


def data_folder(source: ModelSource) -> Path:
    """Return the folder of the data of a `mapped` source, which holds all that links lead to: ONNX
    Runtime takes no link out of the folder of a model from bytes.
    """
    roots = paths.data_roots(source.path, source.path.resolve(), source.external_data_dir)
    try:
        return Path(os.path.commonpath(roots))
    except ValueError:  # Windows: the model is a link to another drive
        return source.path.parent


def mapped(source: ModelSource) -> onnx.ModelProto:
    """Return a copy of a source to change and pass to `open_source`; its weights stay mapped.

    If the external data is in another folder, the file's own weights are in the model instead.
    Raises ModelError.
    """
    if source.external_data_dir not in (None, source.path.parent):
        return onnx.load(str(source.path), load_external_data=False)
    bare = reader.read_mapped(source.path)
    folder = data_folder(source)
    data = DataFolder.of_model(source.path, bare.file, source.external_data_dir)
    for tensor in protos.tensors(bare.proto):
        if tensor.data_location != tensor.EXTERNAL:
            continue
        at, file = {entry.key: entry for entry in tensor.external_data}, bare.file
        if reader.is_external(tensor):
            file = data.open(reader.location(tensor), where=str(source.path))
        else:
            span = bare.spans[int(at["offset"].value)]
            at["offset"].value = str(span.offset)
            tensor.external_data.add(key="length", value=str(span.length))
        try:
            at["location"].value = Path(os.path.relpath(file.path, folder)).as_posix()
        except ValueError as error:
            raise ModelError(
                f"has weights in {file.path}, on another drive than {folder}",
                where=str(source.path),
                remedy="copy the file in place of the link",
                code=Code.DATA_REFUSED,
            ) from error
    return bare.proto


def open_files(
    model: Path,
    providers: Sequence[ExecutionProvider],
    *,
    sharing: bool,
    data: Path,
    changed: bytes | None = None,
) -> Session:
    """Open a session of an EPContext model on its EPs.

    Args:
        model: its file.
        providers: its EPs, bound to their options.
        sharing: other models share its context.
        data: the folder of its external data.
        changed: model to open in place of the file, with the file's contexts and data.

    Raises:
        InvalidGraph: the EP refuses it.
        ProviderUnavailable: this host does not have the EP.
    """
    options = {"ep.share_ep_contexts": "1"} if sharing else {}
    if data != model.parent or changed is not None:
        options[_DATA_FOLDER] = str(data)
    if changed is not None:
        options[FILE_PATH] = str(model)
        return Session(changed, session_options=options, providers=providers)
    return Session(model, session_options=options, providers=providers)


def load_natively(model: Path, providers: Sequence[ExecutionProvider]) -> None:
    """Load an EPContext model in one session of onnxruntime itself, and discard the session."""
    options = native.session_options()
    options.log_severity_level = 3
    for provider in providers:
        provider.add_to(options)
    ort.InferenceSession(str(model), options, enable_fallback=0)


def close(sessions: Sequence[Session]) -> None:
    """Destroy sessions in reverse order, and release shared graphs that no session took."""
    for session in reversed(sessions):
        session.close()
    SHARED.clear()


def run_source(session: ort.InferenceSession, feeds: Feeds) -> dict[str, Array]:
    """Run a source model; return its outputs by name, sequences and maps as in `values.flat`.

    Raises:
        NotComparable: an output is missing, or not a tensor.
    """
    outputs = session.get_outputs()
    names = [output.name for output in outputs]
    kinds = [value.type for value in (*session.get_inputs(), *outputs)]
    if not any(word in kind for kind in kinds for word in _BEYOND_NUMPY):
        return _named(outputs, session.run(names, dict(feeds)))
    ort_values = {name: values.to_value(array) for name, array in feeds.items()}
    results = session.run_with_ort_values(names, ort_values)
    return _named(outputs, [values.to_python(result) for result in results])


def run_files(session: Session, feeds: Feeds) -> dict[str, Array]:
    """Run an EPContext model; return its outputs as `run_source` does."""
    outputs = session.get_outputs()
    return _named(outputs, session.run([output.name for output in outputs], feeds))


def _named(outputs: Sequence[ort.NodeArg | NodeArg], results: Sequence[object]) -> dict[str, Array]:
    arrays: dict[str, Array] = {}
    names, kinds = [each.name for each in outputs], [each.type for each in outputs]
    for name, value in values.flat(names, results, kinds):
        if not isinstance(value, np.ndarray | np.generic):
            kind = "missing" if value is None else "not a tensor"
            raise NotComparable(f"output '{name}' is {kind}")
        arrays[name] = np.asarray(value)
    return arrays


def words(error: Exception) -> str:
    """Return the message of an ONNX Runtime error in one line, without its source locations."""
    return first_line(error).rpartition("Status Message: ")[2].strip()
