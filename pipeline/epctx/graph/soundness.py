"""Verdicts of onnx's checker and of ONNX Runtime on a model before anything is built.

ONNX Runtime decides: its CPU EP loads a model or does not. onnx.checker's verdict may differ: it
knows neither ONNX Runtime's own operators nor the faults that ONNX Runtime ignores. The checker is
cheap, so it is asked first. ONNX Runtime decides if the checker objects.
"""

from __future__ import annotations

import dataclasses
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Final

import onnx
import onnxruntime as ort
from msgspec import Struct
from onnxruntime.capi import onnxruntime_pybind11_state as ort_native

from epctx.error_codes import Code
from epctx.errors import MESSAGE_LENGTH, ModelError, StorageError
from epctx.graph import native
from epctx.graph.serde import protos
from epctx.graph.serde.reader import STAND_IN, OnnxFile

_CONTRADICTION = ("ShapeInferenceError", "TypeInferenceError", "Type Error")
_BEYOND = 2**31 - 1
"""An opset version that no domain has reached."""
_CONTEXT = re.compile(r"\s*==> Context:\s*(Bad node spec for node\. )?")


def objection(model: onnx.ModelProto) -> str | None:
    """Return onnx.checker's objection to a model without its weights; None if it has none.

    The checker runs by path, in a private folder that holds the small proto and an empty file,
    which every external tensor names. The checker only tests that an external data file exists and
    is regular, and never its size or content (measured, onnx 1.23.2). epctx tested all of these
    when it resolved the references. So no weight is read or copied.

    Raises:
        StorageError: temporary files cannot be written.
    """
    with (
        StorageError.if_refused(
            "temporary files cannot be written",
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
    """Give every input and output a shape for a while: the checker refuses an unknown rank.

    ONNX Runtime takes such models; `shapes` in a manifest is for them.
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
    """Refuse opsets that ONNX Runtime does not read.

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
    """Refuse a model whose types and shapes do not fit each other, as ONNX Runtime sees them.

    External weights of the main graph become inputs: no shape depends on their values, and no file
    is opened.

    Raises:
        ModelError: types or shapes do not fit. Other objections of ONNX Runtime are ignored here.
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


def session_error(
    model: bytes | str, entries: Mapping[str, str] = MappingProxyType({})
) -> str | None:
    """Return ONNX Runtime's objection to a model; None if its CPU EP loads it.

    Args:
        model: the model's bytes or path.
        entries: further entries of the session's configuration.
    """
    opened = session(model, entries)
    return opened if isinstance(opened, str) else None


def session(model: bytes | str, entries: Mapping[str, str]) -> ort.InferenceSession | str:
    """Return a session of the CPU EP without optimizations, or ONNX Runtime's objection."""
    options = native.session_options()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for key, value in entries.items():
        options.add_session_config_entry(key, value)
    size = Path(model).stat().st_size if isinstance(model, str) else len(model)
    try:
        with native.allowed("ONNX Runtime", size):
            return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own exceptions have no narrower base
        return str(error)


def newest(domain: str) -> int | None:
    """Return the newest opset that ONNX Runtime supports; None if it does not know the domain."""
    limit = re.search(r"till opset (\d+)", _refusal(domain, _BEYOND) or "")
    return int(limit[1]) if limit else None


def has_operator(domain: str, op_type: str, version: int) -> bool:
    """Tell whether ONNX Runtime has an operator in this opset of a domain."""
    return any(since <= version for since in _operators().get((domain, op_type), ()))


@cache
def _operators() -> Mapping[tuple[str, str], Sequence[int]]:
    """Return opsets in which each operator of ONNX Runtime changed, by domain and op type."""
    versions: dict[tuple[str, str], list[int]] = {}
    for schema in ort_native.get_all_operator_schema():
        versions.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return versions


@cache
def _refusal(domain: str, version: int) -> str | None:
    """Return ONNX Runtime's objection to an empty model with this opset; None if it has none."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    probe = onnx.helper.make_model(
        onnx.helper.make_graph([], "probe", [value], [value]),
        opset_imports=[onnx.helper.make_opsetid(domain, version)],
        ir_version=8,
    )
    text = " ".join((session_error(probe.SerializeToString()) or "").split())
    _, _, limit = text.partition("Current official support")
    return f"its support{limit.rstrip(' .')}" if limit else text or None


_FRUGAL: Final = {"session.disable_prepacking": "1"}
"""Session entries that save memory: prepacking copies every weight."""
_LACKS_EP: Final = (
    "is not compatible with any execution provider added to the session",
    "Failed to find kernel for com.microsoft.EPContext(1)",  # for a node that takes float16
)
"""Errors about EPContext nodes in a model that ONNX Runtime otherwise accepts."""
_DATA_FOLDER: Final = "session.model_external_initializers_file_folder_path"

_SOURCE: Final = re.compile(r"\S*/onnxruntime_src/\S+ .*?\)(?: const)?(?: \[with [^\]]*\])? ")
"""A place in ONNX Runtime's source: file, line and function."""
_CODE: Final = re.compile(r"\[ONNXRuntimeError\] : \d+ : \w+ : ")
_MARKS: Final = (
    "failed:",
    "This is an invalid model. ",
    "with error: ",
    ", Error ",
    "Fatal error: ",
)
"""Phrases that precede the reason in ONNX Runtime's messages."""

_NODE: Final = re.compile(r'In Node, \("(?P<name>.*?)", (?P<op>\w+), "(?P<domain>.*?)", -?\d+\)')
_UNKNOWN: Final = re.compile(
    r"^(?P<domain>[^:\s]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op"
    r"|^No Op registered for (?P<op_2>\w+) with domain_version of"
    r"|^Could not find an implementation for (?P<op_3>\w+)\(\d+\) node with name"
)


class Verdict(Struct, frozen=True, kw_only=True):
    """ONNX Runtime's verdict on a model.

    Attributes:
        refusal: the objection; None if the CPU EP loads the model.
        outputs: the graph's outputs as ONNX Runtime infers them, tensors only.
    """

    refusal: str | None
    outputs: tuple[onnx.ValueInfoProto, ...] = ()


def try_loading(model: OnnxFile) -> Verdict:
    """Let ONNX Runtime load a model.

    ONNX Runtime itself maps initializers and Constants, by the real paths of their files: it
    follows no link out of a folder. It gets all other tensors as raw data.

    Args:
        model: the model as it was read, or with other nodes; the call changes it.
    """
    folder = None
    with suppress(ValueError):  # no weights, or files on several drives of Windows
        folder = os.path.commonpath({weight.file.path.parent for weight in model.weights})
    mappable = {id(tensor): tensor for tensor in _mappable(model.proto)}
    for tensor in protos.tensors(model.proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        reference = model.reference(tensor)
        del tensor.external_data[:]
        if id(tensor) in mappable and folder is not None:
            place = reference.file.path.relative_to(folder)
            tensor.external_data.add(key="location", value=place.as_posix())
            tensor.external_data.add(key="offset", value=str(reference.offset))
            tensor.external_data.add(key="length", value=str(reference.length))
        else:
            tensor.ClearField("data_location")
            tensor.raw_data = reference.read()
    entries = dict(_FRUGAL)
    if folder is not None:
        entries[_DATA_FOLDER] = folder
    said = session(model.proto.SerializeToString(), entries)
    if isinstance(said, str):
        return Verdict(refusal=said)
    outputs = (_inferred(each.name, each.type, each.shape) for each in said.get_outputs())
    return Verdict(refusal=None, outputs=tuple(filter(None, outputs)))


def output_types(model: OnnxFile) -> Mapping[str, onnx.TypeProto] | None:
    """Return the types of a model's outputs as ONNX Runtime infers them, tensors only; None if it
    does not load the model.

    The call changes `model`. A scalar has no shape here: ONNX Runtime does not distinguish it from
    an unknown rank.
    """
    verdict = try_loading(model)
    return None if verdict.refusal else {value.name: value.type for value in verdict.outputs}


def _inferred(
    name: str, kind: str, shape: Sequence[int | str | None]
) -> onnx.ValueInfoProto | None:
    """Return a session's output, whose type is written `tensor(float)`; None if it is no tensor."""
    tensor = re.fullmatch(r"tensor\((\w+)\)", kind)
    if tensor is None:
        return None
    element = onnx.TensorProto.DataType.Value(tensor[1].upper())
    return onnx.helper.make_tensor_value_info(name, element, shape or None)


def refusal_of_file(path: Path, data: Path) -> str | None:
    """Return ONNX Runtime's objection to a model file; None if it loads the file, or would load it
    with an EP that is missing.

    Args:
        data: the folder of the external data.
    """
    entries, given = dict(_FRUGAL), path.read_bytes() if data != path.parent else str(path)
    if data != path.parent:  # by path, ONNX Runtime looks beside the model and nowhere else
        entries[_DATA_FOLDER] = str(data)
    said = session_error(given, entries)
    return None if said is not None and any(each in said for each in _LACKS_EP) else said


def _mappable(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Yield the tensors that ONNX Runtime 1.31.1 itself reads from files."""
    for graph in protos.graphs(model):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant" and not node.domain:
                yield from (each.t for each in node.attribute if each.HasField("t"))


def words(said: str) -> str:
    """Return ONNX Runtime's reason in one line, without error code and source line."""
    parts = filter(None, map(str.strip, reversed(_CODE.split(said[:MESSAGE_LENGTH]))))
    line = next(parts, "it does not say why").splitlines()[0]  # some of its errors are empty
    for mark in _MARKS:
        line = line.partition(mark)[2] or line
    return _SOURCE.sub("", line).strip()


def unknown_op(said: str) -> tuple[str, str | None] | None:
    """Return the operator that ONNX Runtime does not have, and its domain if the message names it;
    None if the message is about something else.
    """
    unknown = _UNKNOWN.match(words(said))
    if unknown is not None:
        op = next(filter(None, (unknown["op"], unknown["op_2"], unknown["op_3"])))
        domain = unknown["domain"]
        return op, "" if domain == "ai.onnx" else domain
    node = _NODE.search(said[:MESSAGE_LENGTH])
    if node is not None and words(said).startswith("No opset import for domain"):
        return node["op"], node["domain"]
    return None


def is_custom_op(said: str) -> bool:
    """Tell whether ONNX Runtime lacks an operator, and all others of its domain. It names the
    domain unless that is one of ONNX.
    """
    _, domain = unknown_op(said) or ("", None)
    return bool(domain) and all(domain != each for each, _ in _operators())


def no_kernel(op: str, domain: str) -> str:
    """Return a message about an operator that ONNX Runtime does not have."""
    return f"ONNX Runtime has no kernel for op {op} of domain {domain or 'ai.onnx'}"


def load_error(said: str, model: onnx.ModelProto, *, where: str) -> ModelError:
    """Return the error of a model that ONNX Runtime does not load."""
    unknown = unknown_op(said)
    if unknown is None or unknown[1] in {function.domain for function in model.functions}:
        node = _NODE.search(said[:MESSAGE_LENGTH])
        named = (
            f"node {node['name']!r} ({node['op']}): " if node is not None and node["name"] else ""
        )
        return ModelError(
            "ONNX Runtime does not load it",
            where=where,
            why=named + words(said),
            remedy="correct in the model what ONNX Runtime objects to, or export it again",
        )
    op, domain = unknown
    nodes = (n for n in protos.nodes(model) if n.op_type == op and domain in (None, n.domain))
    first = next(nodes, onnx.NodeProto(op_type=op, domain=domain or ""))
    imports = ((each.domain, each.version) for each in model.opset_import)
    versions = {"" if domain == "ai.onnx" else domain: version for domain, version in imports}
    version = versions.get(first.domain, "not imported")
    return ModelError(
        f"{no_kernel(op, first.domain)} (version {version})",
        where=f"{where}: {protos.describe(first)}",
        remedy="export the model with operators that ONNX Runtime has, with this one as a local "
        "function of the model, or name the library that has it in `custom_ops` of the model",
        code=Code.NO_KERNEL,
    )


def with_verdict(objection: ModelError, said: str | None) -> ModelError:
    """Return an error of epctx about a file, together with ONNX Runtime's verdict.

    Args:
        said: ONNX Runtime's objection; None if it loads the file.
    """
    if said is None:
        return ModelError.of(
            objection.failure,
            remedy="ONNX Runtime loads it, epctx cannot read it: report it, with the model",
        )
    why = "; ".join(filter(None, (objection.why, f"ONNX Runtime: {words(said)}")))
    return ModelError.of(dataclasses.replace(objection.failure, why=why))
