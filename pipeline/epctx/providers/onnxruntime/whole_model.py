"""Run a whole model on its generating sessions: partitions on the EP, the rest on the CPU EP.

On a host without an NPU, only the sessions that compiled a group can run the graphs of a shared QNN
context (real-eps.md section 6). Each session runs one partition. The nodes between partitions are
cut into pieces that need only values computed earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from msgspec import Struct

from epctx.graph import native
from epctx.graph.dataflow import Dataflow
from epctx.graph.model import Partition
from epctx.graph.partition import surgery
from epctx.graph.partition.assign import PLAIN, components, needs_of, segments
from epctx.graph.partition.borders import type_name
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import PartitionedModel
from epctx.providers.onnxruntime.exchange import Staging

if TYPE_CHECKING:
    Values = Mapping[str, ort.OrtValue]

_CPU = -1


class Piece(Struct, frozen=True, kw_only=True, eq=False):
    """A part of a model that runs in one session. `model`: model for the CPU EP; None for a
    partition.
    """

    partition: Partition
    model: ir.Model | None


class GeneratingModel:
    """A partitioned model that runs piece by piece.

    Create this before the partitions are replaced by EPContext nodes.

    Args:
        model: the partitioned model.
        folder: folder for the files of the CPU's pieces; created on demand.

    Attributes:
        inputs: names of the inputs that a run requires.
        kinds: types of the outputs by name, in the notation of `borders.type_name`.
    """

    def __init__(self, model: PartitionedModel, folder: Path) -> None:
        self._pieces = tuple(_pieces(model))
        self._inputs = {value.name: value.const_value for value in model.model.graph.inputs}
        self.inputs = {name or "" for name, value in self._inputs.items() if value is None}
        self._outputs = tuple(value.name or "" for value in model.model.graph.outputs)
        self.kinds = {
            value.name or "": "" if value.type is None else type_name(value.type)
            for value in model.model.graph.outputs
        }
        self._constants = {
            value.name or "": value.const_value
            for value in model.model.graph.outputs
            if value.is_initializer() and value.const_value is not None
        }
        self._folder = folder
        self._sessions: dict[Piece, ort.InferenceSession] = {}

    def run(
        self, feeds: Values, run_partition: Callable[[Partition, Values], Values]
    ) -> Mapping[str, Any]:
        """Run the model and return its outputs by name; a sequence as a list, a map as a dict.

        Args:
            feeds: a value for each input that has no default.
            run_partition: runs the EP's session for a partition.

        Raises:
            CompileError: a session cannot run (from `run_partition`).
        """
        values: dict[str, ort.OrtValue] = {}
        for name, default in self._inputs.items():
            if default is not None:
                values[name or ""] = ort.OrtValue.ortvalue_from_numpy(default.numpy())
        for name, constant in self._constants.items():
            values[name] = ort.OrtValue.ortvalue_from_numpy(constant.numpy())
        values.update(feeds)
        lists: dict[str, list[object]] = {}
        for piece in self._pieces:
            names = [value.name or "" for value in piece.partition.inputs]
            given = {name: values[name] for name in names}
            if piece.model is None:
                values.update(run_partition(piece.partition, given))
            else:
                session = self._session(piece, given)
                outputs = [output.name for output in session.get_outputs()]
                values.update(zip(outputs, _run(session, outputs, given), strict=True))
                lists |= {
                    output.name: session.run([output.name], given)[0]  # no OrtValue
                    for output in session.get_outputs()
                    if output.type.startswith(("seq(", "map(")) and output.name in self._outputs
                }
        return {name: lists.get(name, values[name]) for name in self._outputs}

    def _session(self, piece: Piece, given: Values) -> ort.InferenceSession:
        """Open the session of a piece. An input without a type gets the type of its given value."""
        assert piece.model is not None
        if piece not in self._sessions:
            for value in piece.model.graph.inputs:
                if value.type is None:
                    value.dtype = ir.DataType(given[value.name or ""].element_type())
            stem = f"rest_{len(self._sessions)}"
            self._folder.mkdir(parents=True, exist_ok=True)
            name = Staging(folder=self._folder).write(piece.model, stem)
            options = native.session_options()
            options.log_severity_level = 3
            path = str(self._folder / name)
            session = ort.InferenceSession(path, options, providers=[DEFAULT_EP])
            self._sessions[piece] = session
        return self._sessions[piece]


def _run(session: ort.InferenceSession, outputs: Sequence[str], given: Values) -> Sequence[Any]:
    """Run a session and return its outputs as OrtValues. Strings and other values that have no
    OrtValue stay as they are.
    """
    if all(isinstance(value, ort.OrtValue) for value in given.values()):
        results: Sequence[Any] = session.run_with_ort_values(outputs, given)
        return results
    return [
        ort.OrtValue.ortvalue_from_numpy(value)
        if isinstance(value, np.ndarray) and value.dtype.kind != "O"
        else value
        for value in session.run(outputs, dict(given))
    ]


def _pieces(model: PartitionedModel) -> Iterator[Piece]:
    """Yield the partitions and the pieces between them, in an order in which they can run.

    The remaining nodes are cut into as few pieces as possible, as in `graph.partition.assign`.
    """
    flow = Dataflow(model.model)
    place = {node: index for index, node in enumerate(flow.nodes)}
    group_of = list(range(len(flow.nodes)))
    partitions: dict[int, Partition] = {}
    for partition in model.partitions:
        members = [place[node] for node in partition.nodes]
        partitions[min(members)] = partition
        for node in members:
            group_of[node] = min(members)
    groups = list(components(flow.predecessors, group_of))
    rest = [group[0] not in partitions for group in groups]
    pieces = segments(needs_of(groups, flow.predecessors), rest)
    for numbers, owner in zip(pieces.members, pieces.owner, strict=True):
        if owner == PLAIN:
            yield Piece(partition=partitions[groups[numbers[0]][0]], model=None)
        else:
            cut = flow.cut(_CPU, (node for number in numbers for node in groups[number]))
            yield Piece(partition=cut, model=surgery.extract(model.model, cut))
