"""Outputs that models computed, kept on disk by the inputs that they were computed from.

Whoever runs a model writes them, one input set after the other, and verify compares them. So a
process that is ended in a run loses only that run, and a tolerance can change without a new run.
One folder for each model and input set has an `output_K.pb` (TensorProto, named) for each output,
as in ONNX's own test data. Other facts about a model lie beside them, as JSON.

A generating session that stands in for a file does not show the names and the order of the file's
inputs and outputs, so these are compared in addition to the numbers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeVar

import msgspec
import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from msgspec import Struct
from onnx import numpy_helper

from epctx import codec
from epctx.errors import StorageError
from epctx.graph.epcontext import EPContextNode
from epctx.graph.inputs import Array
from epctx.graph.serde import protos
from epctx.inference import feeds as feeds_
from epctx.inference.feeds import Feeds
from epctx.inference.values import NodeArg
from epctx.providers.base import Boundary, Port
from epctx.verification.findings import Finding
from epctx.verification.folder import context_nodes

T = TypeVar("T")
_FIRST = "output_0.pb"


class Variant(Struct, frozen=True, kw_only=True):
    """One of several devices that the files hold a model for; its sessions were made for it alone.

    Attributes:
        name: name for messages.
        place: name under which the outputs of its sessions are kept.
        begun: its sessions were made.
        misfit: how its graphs in the files differ; None if no difference is known.
    """

    name: str
    place: str
    begun: bool = True
    misfit: str | None = None


def write(folder: Path, model: str, feeds: Feeds, outputs: Mapping[str, Array]) -> None:
    """Keep the outputs, by name, of the manifest's `model` for these inputs. If the process ends
    meanwhile, no outputs are kept.

    Raises:
        StorageError: the disk refuses.
    """
    place = folder / model / name_of(feeds)
    unfinished = place.with_suffix(".part")
    with _writing(place):
        unfinished.mkdir(parents=True, exist_ok=True)
        for number, (name, array) in enumerate(outputs.items()):
            tensor = numpy_helper.from_array(np.asarray(array), name)
            (unfinished / f"output_{number}.pb").write_bytes(tensor.SerializeToString())
        shutil.rmtree(place, ignore_errors=True)
        unfinished.rename(place)


def has(folder: Path, model: str, feeds: Feeds) -> bool:
    """Return whether the outputs for these inputs are kept."""
    return (folder / model / name_of(feeds) / _FIRST).is_file()


def read(folder: Path, model: str, feeds: Feeds) -> dict[str, Array] | None:
    """Return the outputs that were kept for these inputs; None if none were. Raises as `named`."""
    return named(folder, model, name_of(feeds))


def named(folder: Path, model: str, name: str) -> dict[str, Array] | None:
    """Return the outputs kept under a name from `name_of`; None if there are none.

    Raises:
        StorageError: what was kept cannot be read.
    """
    place = folder / model / name
    if not (place / _FIRST).is_file():
        return None
    arrays: dict[str, Array] = {}
    for number in range(sum(1 for _ in place.glob("output_*.pb"))):
        path = place / f"output_{number}.pb"
        try:
            tensor = onnx.TensorProto.FromString(path.read_bytes())
            arrays[tensor.name] = numpy_helper.to_array(tensor)
        except (OSError, DecodeError, ValueError, TypeError, KeyError) as error:
            raise _broken(path, error) from error
    return arrays


def fail(folder: Path, model: str, feeds: Feeds, finding: Finding) -> None:
    """Keep the finding why there are no outputs for these inputs. Raises StorageError."""
    keep(folder, model, name_of(feeds), finding)


def failure(folder: Path, model: str, feeds: Feeds) -> Finding | None:
    """Return the finding that `fail` has kept; None if there is none. Raises StorageError."""
    return kept(folder, model, name_of(feeds), Finding)


def keep(folder: Path, model: str, what: str, value: object) -> None:
    """Keep another fact about the manifest's `model`, under the name `what`.

    Raises:
        StorageError: the disk refuses.
    """
    place = folder / model / f"{what}.json"
    with _writing(place):
        place.parent.mkdir(parents=True, exist_ok=True)
        unfinished = place.with_suffix(".part")
        unfinished.write_bytes(codec.encode(value))
        unfinished.replace(place)


def kept(folder: Path, model: str, what: str, kind: type[T]) -> T | None:
    """Return the fact that `keep` has kept; None if there is none.

    Raises:
        StorageError: what was kept cannot be read.
    """
    place = folder / model / f"{what}.json"
    if not place.is_file():
        return None
    try:
        return codec.decode(place.read_bytes(), kind)
    except (OSError, msgspec.DecodeError) as error:
        raise _broken(place, error) from error


def refuse(folder: Path, model: str, reason: str) -> None:
    """Keep the reason why a model has no outputs of generating sessions. Raises as `keep`."""
    keep(folder, model, "refusal", reason)


def refusal(folder: Path, model: str) -> str | None:
    """Return the reason that `refuse` has kept; None if there is none. Raises as `kept`."""
    return kept(folder, model, "refusal", str)


def boundaries(folder: Path, model: str) -> tuple[Boundary, ...]:
    """Return the boundaries of EPContext nodes in a model's generating sessions; empty if an EP
    does not report them. Raises as `kept`.
    """
    return kept(folder, model, "boundaries", tuple[Boundary, ...]) or ()


def variants(folder: Path, model: str) -> tuple[Variant, ...]:
    """Return the devices that the compiling sessions of a model ran for; without a record, one
    variant without a name. Raises as `kept`.
    """
    recorded = kept(folder, model, "variants", tuple[Variant, ...])
    return recorded or (Variant(name="", place=model),)


def names(folder: Path) -> set[str]:
    """Return the paths of all files below a folder, with `/`; none if it does not exist."""
    paths: set[str] = set()
    for place, _, files in os.walk(folder):
        below = Path(place).relative_to(folder).as_posix()
        paths.update(files if below == "." else (f"{below}/{name}" for name in files))
    return paths


def name_of(feeds: Feeds) -> str:
    """Return the name under which the outputs for these inputs are kept."""
    return feeds_.digest(feeds)[:32]


def _writing(place: Path) -> AbstractContextManager[None]:
    return StorageError.if_refused("cannot be written", file=str(place), remedy="free some space")


def _broken(place: Path, error: Exception) -> StorageError:
    return StorageError(
        "a recorded output is broken",
        file=str(place),
        why=str(error),
        remedy="build again without the cache",
    )


def boundary_differences(model: onnx.ModelProto, wanted: Sequence[Boundary]) -> Iterator[str]:
    """Yield how a file's EPContext nodes differ from those that the generating sessions ran."""
    described = _described(model)
    nodes = {node.name: node for node in context_nodes(model)}
    for name in nodes.keys() - {each.node for each in wanted}:
        yield f"no generating session has its node {name!r}"
    for each in wanted:
        node = nodes.get(each.node)
        if node is None:
            yield f"it lacks the node {each.node!r}"
            continue
        own = EPContextNode.from_proto(node).own_names
        for kind, actual, right in (
            ("inputs", node.input, each.inputs),
            ("outputs", node.output, each.outputs),
        ):
            names, wanted_names = [own.get(n, n) for n in actual], [port.name for port in right]
            if names != wanted_names:
                where = f"node {each.node!r}: {kind}"
                yield f"{where} are {', '.join(names)}, not {', '.join(wanted_names)}"
                continue
            for name, port in zip(actual, right, strict=True):
                yield from _misfit(described.get(name), port)


def _described(model: onnx.ModelProto) -> Mapping[str, NodeArg]:
    described: dict[str, NodeArg] = {}
    for graph in protos.graphs(model):
        described |= {
            i.name: NodeArg.of(i) for i in (*graph.value_info, *graph.output, *graph.input)
        }
        for tensor in graph.initializer:
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            described[tensor.name] = NodeArg.of(info)
    return described


def _misfit(actual: NodeArg | None, right: Port) -> Iterator[str]:
    if actual is None or not right.type:
        return
    if actual.type != right.type:
        yield f"{right.name!r} is {actual.type}, not {right.type}"
    pairs = list(zip(actual.shape, right.shape, strict=False))
    differ = any(isinstance(one, int) and two not in (None, one) for one, two in pairs)
    if actual.ranked and (differ or len(actual.shape) != len(right.shape)):
        yield f"{right.name!r} has the shape {actual.shape}, not {list(right.shape)}"
