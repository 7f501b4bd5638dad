"""ONNX Runtime as the judge of a model: whether its CPU EP loads it, and what it says if not.

onnx.checker's verdict is another one: it knows neither ONNX Runtime's own operators nor what ONNX
Runtime overlooks. So it is asked first, being cheap, and where it objects ONNX Runtime decides.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import onnx
from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import MESSAGE_LENGTH, ModelError
from epctx.graph.checks.soundness import session, session_error
from epctx.graph.serde import protos
from epctx.graph.serde.reader import OnnxFile
from epctx.graph.weights.external_data import Reference

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


def ask(found: OnnxFile) -> Verdict:
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


def types(found: OnnxFile) -> Mapping[str, onnx.TypeProto] | None:
    """Return the types of a model's outputs as ONNX Runtime infers them, tensors only; None if it
    does not load the model, which is used up.

    A scalar has no shape here: ONNX Runtime does not tell it from an unknown rank.
    """
    verdict = ask(found)
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


def error(said: str, model: onnx.ModelProto, *, where: str) -> ModelError:
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


def explained(objection: ModelError, said: str | None) -> ModelError:
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
