"""What is fuzzed: each parser of bytes that somebody else wrote, and what must hold of it.

A target takes any bytes. What it may raise are the errors of `epctx.errors` that the parser
promises, which it swallows; anything else is a finding. What it reads is held to an oracle where
there is one: written again it is the same, or another reader says the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # has no stubs

from epctx import codec, lockfile, manifest
from epctx.actions.compile import CompileResult
from epctx.cache.action import StoredAction
from epctx.commands.inspect import command
from epctx.errors import EpctxError, InvalidGraph, InvalidManifest, LockError, ModelError
from epctx.files.digest import of_bytes
from epctx.graph import epcontext
from epctx.graph.serde import protos, wire
from epctx.graph.serde import reader as onnx_files
from epctx.graph.weights.external_data import DataFolder
from epctx.inference import feeds
from epctx.lockfile import yaml_text
from epctx.manifest import ModelSource, OptionValue
from epctx.parsing import document
from epctx.parsing import load as parsing
from epctx.providers.onnxruntime import builtin
from epctx.providers.onnxruntime.openvino import binary as openvino_binary
from epctx.providers.onnxruntime.openvino import provider as openvino
from epctx.providers.onnxruntime.qnn import provider as qnn
from epctx.providers.reference import reader
from epctx.stages import load
from epctx.verification import integrity
from tests.fuzz import artifacts
from tests.fuzz.scratch import FOLDER, written
from tests.kit.sealing import resealed

_DATA: Final = bytes(range(256)) * 32
written("w.data", _DATA)
written("sdk/libacme.so", b"\x7fELF\0CreateEpFactories\0")
_QNN: Final = qnn.QNNExecutionProvider({"soc_model": "60"})
_VINO: Final = openvino.OpenVINOExecutionProvider({})


def recognize_none(self: qnn.QNNExecutionProvider, head: bytes) -> bool:
    """In place of QNN's own: a mock, since what looks like a binary of QNN would start a process
    each time, which has tests itself."""
    return False


def manifests(data: bytes) -> None:
    """A manifest is read, or every violation is told with a remedy and its place."""
    try:
        read = document.parse(data, file="m.yaml", path=FOLDER / "m.yaml")
        violations = parsing.violations(read)
        if violations:
            raise InvalidManifest(violations)
        made = parsing.parse(read)
    except InvalidManifest as error:
        for violation in error.violations:
            assert violation.what and violation.remedy
            assert (violation.line >= 1 and violation.column >= 1) or not violation.path
        return
    assert codec.decode(codec.encode(made), manifest.Manifest) == made


def locks(data: bytes) -> None:
    """A lock is read, and is the same when it is written and read again; or a LockError."""
    try:
        read = lockfile.parse(data, where="m.lock.yaml")
    except LockError:
        return
    again = lockfile.parse(lockfile.text(read).encode(), where="again")
    assert again == read
    assert yaml_text.text(msgspec.to_builtins(again)) == yaml_text.text(msgspec.to_builtins(read))


def reference_binaries(data: bytes) -> None:
    """A context binary of the reference EP; its checksums are made right if the first byte is odd.

    What is read has nothing outside the file, and every tensor has the bytes of its digest.
    """
    binary = resealed(data[1:]) if data[:1] and data[0] & 1 else data[1:]
    try:
        context = reader.open_payload(binary, where="node")
    except InvalidGraph:
        return
    size = len(binary)
    for tensor in context.tensors.values():
        assert 0 <= tensor.offset < tensor.end <= size
        assert of_bytes(context.view[tensor.offset : tensor.end]) == tensor.digest
    for graph in context.graphs.values():
        assert len(graph.proto) == graph.entry.length > 0


def openvino_binaries(data: bytes) -> None:
    """The table of an OpenVINO binary; each blob is inside the file."""
    try:
        found = openvino_binary.read(written("openvino.bin", data))
    except openvino_binary.Malformed:
        return
    for blob in found.blobs:
        assert 0 <= blob.offset <= blob.offset + blob.size <= len(data)


def context_nodes(data: bytes) -> None:
    """`epctx inspect` of a model: told in words, or a ModelError; and the nodes both ways."""
    path = written("m_ctx.onnx", data)
    try:
        found = command.inspect(path)
    except ModelError:
        return
    codec.encode(found)
    try:
        model = onnx_files.read(path)
    except ModelError:
        return  # a context binary
    try:
        nodes = epcontext.read_all(model)
        for node in nodes:
            _ = node.context_path
    except InvalidGraph:
        return
    for node, proto in zip(nodes, filter(epcontext.is_epcontext, model.graph.node), strict=True):
        again = onnx.NodeProto(name=proto.name, domain=proto.domain, op_type=proto.op_type)
        again.input.extend(proto.input)
        again.output.extend(proto.output)
        again.attribute.extend(sorted(proto.attribute, key=lambda a: a.name))
        assert epcontext.EPContextNode.from_proto(again) == node


def models(data: bytes) -> None:
    """The load stage: a model with its digest, or an error of the input's."""
    try:
        loaded = load.run(ModelSource(name="m", path=written("m.onnx", data)))
    except ModelError:
        return
    assert loaded.sources


def stripped_models(data: bytes) -> None:
    """Leaving out raw data keeps everything else; what protobuf reads, this reads."""
    try:
        kept, spans = wire.strip(memoryview(data), threshold=8, location="here")
    except wire.Malformed:
        return
    for span in spans:
        assert span.offset >= 0 and span.length >= 8 and span.offset + span.length <= len(data)
    try:
        whole = onnx.ModelProto.FromString(data)
    except DecodeError:
        return
    filled = onnx.ModelProto.FromString(kept)
    for tensor in protos.tensors(filled):
        if (
            onnx_files.location(tensor) == "here"
            and tensor.data_location == onnx.TensorProto.EXTERNAL
        ):
            offset = next((e.value for e in tensor.external_data if e.key == "offset"), "")
            if offset.isdecimal() and int(offset) < len(spans) and not tensor.HasField("raw_data"):
                span = spans[int(offset)]
                tensor.raw_data = data[span.offset : span.offset + span.length]
                tensor.ClearField("data_location")
                del tensor.external_data[-2:]
    if onnx_files.location(next(protos.tensors(whole), onnx.TensorProto())) != "here":
        assert len(list(protos.tensors(filled))) == len(list(protos.tensors(whole)))


def external_data(data: bytes) -> None:
    """The entries of an external tensor: a range of the file that fits the type, or an error."""
    tensor = onnx.TensorProto()
    try:
        tensor.ParseFromString(data)
    except DecodeError:
        return
    tensor.data_location = onnx.TensorProto.EXTERNAL
    try:
        reference = DataFolder(FOLDER, model=FOLDER / "m.onnx").resolve(tensor)
    except ModelError as error:
        assert error.remedy
        return
    assert reference.file.path == FOLDER / "w.data"
    assert reference.offset >= 0 and reference.offset + reference.length <= len(_DATA)


def sums(data: bytes) -> None:
    """SHA256SUMS: bare names with digests, and a fault for each line that is none."""
    written("sums/SHA256SUMS", data)
    listed, faults = integrity.read_sums(FOLDER / "sums")
    assert len({each.name for each in listed}) == len(listed)
    assert all("/" not in each.name and "\\" not in each.name for each in listed)
    assert len(listed) + len(faults) <= data.count(b"\n") + 1


def input_files(data: bytes) -> None:
    """Values for a model: .npz, .npy or .pb by the first byte, or a ModelError."""
    suffix = (".npz", ".npy", ".pb")[data[0] % 3] if data else ".npz"
    try:
        for values in feeds.read([written(f"input{suffix}", data[1:])]):
            assert values.label
    except ModelError as error:
        assert error.remedy


def compatibilities(data: bytes) -> None:
    """What a model's metadata says of the EPs it fits: judged, never an error."""
    info = data.decode(errors="replace")
    for provider in (_QNN, _VINO):
        for verdict in provider.check_compatibility(info, ()):
            assert verdict.message


def cache_records(data: bytes) -> None:
    """What a cache's record holds: of the form that is asked for, or none."""
    try:
        action = codec.decode(data, StoredAction[CompileResult])
    except msgspec.MsgspecError:
        return
    assert codec.decode(codec.encode(action), StoredAction[CompileResult]) == action


def plugin_options(data: bytes) -> None:
    """The options of an EP that nobody knows: a plugin bound to a library, or an error in words."""
    try:
        options = codec.decode(
            data.replace(b"FOLDER", str(FOLDER).encode()), dict[str, OptionValue]
        )
    except msgspec.MsgspecError:
        return
    try:
        files = builtin.create("AcmeExecutionProvider", options).own_fingerprint().files
    except EpctxError as error:
        assert error.what and error.remedy
        return
    assert all(path.is_file() for path in files.values())


TARGETS: Final[Mapping[str, Callable[[bytes], None]]] = {
    "manifest": manifests,
    "lock": locks,
    "reference_binary": reference_binaries,
    "openvino_binary": openvino_binaries,
    "context_node": context_nodes,
    "model": models,
    "stripped_model": stripped_models,
    "external_data": external_data,
    "sums": sums,
    "input_file": input_files,
    "compatibility": compatibilities,
    "cache_record": cache_records,
    "plugin_options": plugin_options,
    **artifacts.TARGETS,
}
"""By name; each has a folder in `corpus`."""
