"""Verdicts of onnx's checker and of ONNX Runtime on a model before anything is built.

ONNX Runtime decides: its CPU EP loads a model or does not. onnx.checker's verdict is another one:
it knows neither ONNX Runtime's own operators nor what ONNX Runtime overlooks. It is cheap, so it is
asked first. ONNX Runtime decides where it objects.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from epctx.graph.weights.external_data import Reference

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


_FRUGAL: Final = {"session.disable_prepacking": "1"}
"""Prepacking copies every weight."""
_LACKS_EP: Final = (
    "is not compatible with any execution provider added to the session",
    "Failed to find kernel for com.microsoft.EPContext(1)",  # of one that takes float16
)
"""What ONNX Runtime says of EPContext nodes when it has nothing against the model as such."""
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
"""What ONNX Runtime says before it comes to the point."""

_NODE: Final = re.compile(r'In Node, \("(?P<name>.*?)", (?P<op>\w+), "(?P<domain>.*?)", -?\d+\)')
_UNKNOWN: Final = re.compile(
    r"^(?P<domain>[^:\s]*):(?P<op>\w+)\(-?\d+\) is not a registered function/op"
    r"|^No Op registered for (?P<op_2>\w+) with domain_version of"
    r"|^Could not find an implementation for (?P<op_3>\w+)\(\d+\) node with name"
)


class Verdict(Struct, frozen=True, kw_only=True):
    """What ONNX Runtime makes of a model.

    Attributes:
        refusal: what it says against it; None: its CPU EP loads it.
        outputs: the graph's outputs as it infers them, tensors only.
    """

    refusal: str | None
    outputs: tuple[onnx.ValueInfoProto, ...] = ()


def try_loading(found: OnnxFile) -> Verdict:
    """Let ONNX Runtime load a model.

    Initializers and Constants are mapped where they are, by ONNX Runtime itself; other tensors in
    attributes it must be given, and is.

    Args:
        found: the model as it was read, or with other nodes; it is used up.
    """
    folders = Counter[Path]()
    for weight in found.weights:
        folders[weight.file.folder] += weight.length
    folder = folders.most_common(1)[0][0] if folders else None
    mappable = {id(tensor): tensor for tensor in _mappable(found.proto)}
    for tensor in protos.tensors(found.proto):
        if tensor.data_location != onnx.TensorProto.EXTERNAL:
            continue
        reference = found.reference(tensor)
        del tensor.external_data[:]
        if id(tensor) in mappable and reference.file.folder == folder:
            _refer(tensor, reference)
        else:
            tensor.ClearField("data_location")
            tensor.raw_data = reference.read()
    entries = dict(_FRUGAL)
    if folder is not None:
        entries[_DATA_FOLDER] = str(folder)
    said = session(found.proto.SerializeToString(), entries)
    if isinstance(said, str):
        return Verdict(refusal=said)
    outputs = (_inferred(each.name, each.type, each.shape) for each in said.get_outputs())
    return Verdict(refusal=None, outputs=tuple(filter(None, outputs)))


def output_types(found: OnnxFile) -> Mapping[str, onnx.TypeProto] | None:
    """Return the types of a model's outputs as ONNX Runtime infers them, tensors only; None if it
    does not load the model, which is used up.

    A scalar has no shape here: ONNX Runtime does not tell it from an unknown rank.
    """
    verdict = try_loading(found)
    return None if verdict.refusal else {value.name: value.type for value in verdict.outputs}


def _inferred(
    name: str, kind: str, shape: Sequence[int | str | None]
) -> onnx.ValueInfoProto | None:
    """What a session tells of an output: `tensor(float)`, and no shape where it knows no rank."""
    tensor = re.fullmatch(r"tensor\((\w+)\)", kind)
    if tensor is None:
        return None
    element = onnx.TensorProto.DataType.Value(tensor[1].upper())
    return onnx.helper.make_tensor_value_info(name, element, shape or None)


def refusal_of_file(path: Path, data: Path) -> str | None:
    """What ONNX Runtime says against a model file; None: it loads it, or lacks an EP for it alone.

    Args:
        data: the folder of its external data.
    """
    entries, given = dict(_FRUGAL), path.read_bytes() if data != path.parent else str(path)
    if data != path.parent:  # by path, ONNX Runtime looks beside the model and nowhere else
        entries[_DATA_FOLDER] = str(data)
    said = session_error(given, entries)
    return None if said is not None and any(each in said for each in _LACKS_EP) else said


def _mappable(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The tensors that ONNX Runtime 1.31.1 itself reads from files."""
    for graph in protos.graphs(model):
        yield from graph.initializer
        for node in graph.node:
            if node.op_type == "Constant" and not node.domain:
                yield from (each.t for each in node.attribute if each.HasField("t"))


def _refer(tensor: onnx.TensorProto, reference: Reference) -> None:
    keys = {"offset": reference.offset, "length": reference.length}
    tensor.external_data.add(key="location", value=reference.file.location)
    for key, value in keys.items():
        tensor.external_data.add(key=key, value=str(value))


def words(said: str) -> str:
    """What ONNX Runtime says, in one line, without its error code and its source line."""
    parts = filter(None, map(str.strip, reversed(_CODE.split(said[:MESSAGE_LENGTH]))))
    line = next(parts, "it does not say why").splitlines()[0]  # some of its errors are empty
    for mark in _MARKS:
        line = line.partition(mark)[2] or line
    return _SOURCE.sub("", line).strip()


def unknown_op(said: str) -> tuple[str, str | None] | None:
    """The operator that ONNX Runtime does not have, and its domain where it says that; None: it is
    something else that it does not take.
    """
    found = _UNKNOWN.match(words(said))
    if found is not None:
        op = next(filter(None, (found["op"], found["op_2"], found["op_3"])))
        domain = found["domain"]
        return op, "" if domain == "ai.onnx" else domain
    node = _NODE.search(said[:MESSAGE_LENGTH])
    if node is not None and words(said).startswith("No opset import for domain"):
        return node["op"], node["domain"]
    return None


def no_kernel(op: str, domain: str) -> str:
    """That ONNX Runtime does not have an operator, in words."""
    return f"ONNX Runtime has no kernel for op {op} of domain {domain or 'ai.onnx'}"


def load_error(said: str, model: onnx.ModelProto, *, where: str) -> ModelError:
    """What to tell a user of a model that ONNX Runtime does not load."""
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
    versions = {each.domain: each.version for each in model.opset_import}
    return ModelError(
        f"{no_kernel(op, first.domain)} (version {versions.get(first.domain, 'not imported')})",
        where=f"{where}: {protos.describe(first)}",
        remedy="export the model with operators that ONNX Runtime has, or with this one as a local "
        "function of the model",
        code=Code.NO_KERNEL,
    )


def with_verdict(objection: ModelError, said: str | None) -> ModelError:
    """An objection of epctx to a file, with what ONNX Runtime says of the same file.

    Args:
        said: None: ONNX Runtime loads it.
    """
    if said is None:
        return ModelError.of(
            objection.failure,
            remedy="ONNX Runtime loads it, epctx cannot read it: report it, with the model",
        )
    why = "; ".join(filter(None, (objection.why, f"ONNX Runtime: {words(said)}")))
    return ModelError.of(dataclasses.replace(objection.failure, why=why))
