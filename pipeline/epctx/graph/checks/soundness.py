"""What onnx's checker and ONNX Runtime themselves say of a model before anything is built."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType

import onnx
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as ort_native

from epctx.errors import ModelError, StorageError
from epctx.graph import native
from epctx.graph.serde.reader import STAND_IN

_CONTRADICTION = ("ShapeInferenceError", "TypeInferenceError", "Type Error")
_BEYOND = 2**31 - 1
"""A version that no domain has come to."""
_CONTEXT = re.compile(r"\s*==> Context:\s*(Bad node spec for node\. )?")


def objection(model: onnx.ModelProto) -> str | None:
    """What onnx.checker has against a model without its weights, with the node; None: nothing.

    It runs by path, in a private folder that holds the small proto and an empty file, which every
    external tensor names. That is all the same to the checker: of external data it asks whether
    the file is there and regular, never for its size or content (measured, onnx 1.23.2), and that
    was checked when the references were resolved, more strictly. So it costs no copy of the data,
    works where the data is in another folder, and reads no weight.

    Raises:
        StorageError: there is no place for temporary files.
    """
    with (
        StorageError.if_refused(
            "there is no place for temporary files",
            where=tempfile.gettempdir(),
            remedy="free some space there, or set TMPDIR to another folder",
        ),
        tempfile.TemporaryDirectory(prefix="epctx-check-") as folder,
    ):
        path = Path(folder) / "model.onnx"
        path.with_name(STAND_IN).touch()
        with _shapes_given(model):
            path.write_bytes(model.SerializeToString())
        try:
            with native.allowed("onnx's checker", path.stat().st_size):
                onnx.checker.check_model(path)
        except (onnx.checker.ValidationError, RuntimeError, ValueError) as error:
            reason = _CONTEXT.sub("; ", str(error).replace(folder, "").strip())
            return " ".join(reason.split())
    return None


@contextmanager
def _shapes_given(model: onnx.ModelProto) -> Iterator[None]:
    """Let every tensor at the model's border have a shape: of unknown rank, the checker has none.

    ONNX Runtime takes such models, and `shapes` in a manifest is for them.
    """
    without = [
        value.type.tensor_type
        for value in (*model.graph.input, *model.graph.output)
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]
    for tensor_type in without:
        tensor_type.shape.SetInParent()
    try:
        yield
    finally:
        for tensor_type in without:
            tensor_type.ClearField("shape")


def require_known_opsets(model: onnx.ModelProto, *, where: str) -> None:
    """Ask ONNX Runtime whether it reads the opsets that the model imports.

    Raises:
        ModelError: one is newer than the installed onnxruntime.
    """
    for domain, version in ((each.domain, each.version) for each in model.opset_import):
        reason = _refusal(domain, version)
        if reason is not None:
            raise ModelError(
                f"uses opset {version} of domain {domain or 'ai.onnx'!r}",
                where=where,
                why=f"onnxruntime {ort.__version__} does not read it: {reason}",
                remedy="export the model for an older opset, or install a newer onnxruntime",
            )


def require_resolvable(model: onnx.ModelProto, *, where: str) -> None:
    """Ask ONNX Runtime whether the types and shapes of a model fit each other.

    External weights of the main graph stand as inputs: their values matter to no shape, and no file
    is opened.

    Raises:
        ModelError: they do not. Whatever else it has against the model is not asked here.
    """
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    del bare.graph.initializer[:]
    for tensor in model.graph.initializer:
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            bare.graph.initializer.add().CopyFrom(tensor)
        elif all(value.name != tensor.name for value in model.graph.input):
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            bare.graph.input.add().CopyFrom(info)
    text = " ".join((session_error(bare.SerializeToString()) or "").split())
    if any(word in text for word in _CONTRADICTION):
        why = text.partition(" failed:")[2] or text
        raise ModelError(
            "types or shapes in it do not fit each other",
            where=where,
            why=why,
            remedy="the file is broken: export the model again",
        )


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return options


def session_error(
    model: bytes | str, entries: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """What ONNX Runtime says against a model; None: its CPU EP loads it.

    Args:
        model: its bytes, or its path.
        entries: of the session's configuration, beside those that hold its cost down.
    """
    found = session(model, entries)
    return found if isinstance(found, str) else None


def session(model: bytes | str, entries: Mapping[str, str]) -> ort.InferenceSession | str:
    """A session on ONNX Runtime's CPU EP, which is not to be run; else what it says instead."""
    options = _options()
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    size = Path(model).stat().st_size if isinstance(model, str) else len(model)
    try:
        with native.allowed("ONNX Runtime", size):
            return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no narrower base
        return str(error)


def newest(domain: str) -> int | None:
    """The newest opset of a domain that ONNX Runtime supports; None: it does not know it."""
    limit = re.search(r"till opset (\d+)", _refusal(domain, _BEYOND) or "")
    return int(limit[1]) if limit else None


def has_operator(domain: str, op_type: str, version: int) -> bool:
    """Whether ONNX Runtime has an operator in this opset of a domain."""
    return any(since <= version for since in _operators().get((domain, op_type), ()))


@cache
def _operators() -> Mapping[tuple[str, str], Sequence[int]]:
    """The opsets since which each operator of ONNX Runtime is what it is, by domain and op type."""
    found: dict[tuple[str, str], list[int]] = {}
    for schema in ort_native.get_all_operator_schema():
        found.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return found


@cache
def _refusal(domain: str, version: int) -> str | None:
    """What ONNX Runtime says of an empty model with this opset; None: it takes it."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    probe = onnx.helper.make_model(
        onnx.helper.make_graph([], "probe", [value], [value]),
        opset_imports=[onnx.helper.make_opsetid(domain, version)],
        ir_version=8,
    )
    text = " ".join((session_error(probe.SerializeToString()) or "").split())
    _, _, limit = text.partition("Current official support")
    return f"its support{limit.rstrip(' .')}" if limit else text or None
