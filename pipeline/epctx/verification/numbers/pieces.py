"""Models in pieces: each piece is a model of its own, and one of them is open at a time.

A model too large for one context is compiled in pieces. Its file has the EPContext nodes of all
pieces in a row, and its metadata names the values that cross from one piece to the next
(`graph.epcontext.PIECES`). The same names cut its source. So both run piece after piece, and need
only the memory of the largest piece. Outputs of pieces are kept on disk by the inputs of the whole
model (`recordings`), in one folder for each piece.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Collection, Sequence
from operator import itemgetter
from pathlib import Path
from typing import Final

import onnx
import onnxruntime as ort
from msgspec import Struct
from msgspec.structs import replace
from onnx import helper, numpy_helper

from epctx.graph.epcontext import Cuts
from epctx.graph.inputs import Array
from epctx.inference.feeds import Feeds
from epctx.inference.split import SegmentBuilder, SegmentStep, reads_of, segment
from epctx.manifest import ModelSource
from epctx.verification.numbers import recordings, sessions

PIECES: Final = "pieces"
CHAIN: Final = "chain"
RIGHT: Final = "right"
"""Folders below a model. PIECES: outputs of each piece, numbered from 1; pieces of files run on the
source's values, and 0 of a source has the inputs of the whole model. CHAIN: outputs of each piece,
run on the outputs of the piece before. RIGHT, below a piece that its compiling session ran: the
right outputs at that time, since the pieces before may have other weights by now."""


Open = Callable[..., ort.InferenceSession]
"""Opens a session of the `changed` model, as `sessions.open_source` does."""


class Values(Struct, frozen=True):
    """Outputs that the pieces of a model computed, kept by the inputs of the whole model.

    Attributes:
        folder: folder of the outputs, as in `recordings`.
        model: model of the pieces.
        kind: PIECES or CHAIN.
    """

    folder: Path
    model: str
    kind: str = PIECES

    def place(self, number: int) -> str:
        """Return the place of a piece's outputs in the folder."""
        return f"{self.model}/{self.kind}/{number}"

    def read(self, feeds: Feeds, names: Collection[str]) -> dict[str, Array]:
        """Return the named values that pieces have computed, in the order of `names`. The name of a
        sequence stands for all of its parts. Raises StorageError.
        """
        order = {name: number for number, name in enumerate(names)}
        entries: list[tuple[int, str, Array]] = []
        for piece in (self.folder / self.model / self.kind).glob("[0-9]*") if order else ():
            outputs = recordings.read(self.folder, self.place(int(piece.name)), feeds) or {}
            for name, value in outputs.items():
                whole = name if name in order else name.partition("[")[0].partition("{")[0]
                if whole in order:
                    entries.append((order[whole], name, value))
        return {name: value for _, name, value in sorted(entries, key=itemgetter(0))}


def split(graph: onnx.GraphProto, cuts: Cuts) -> tuple[SegmentStep, ...]:
    """Return the pieces of a graph, each with its inputs and outputs.

    Piece *i* makes the values that cut *i* adds to the cut before. It makes them from the values of
    the cut before, graph inputs and initializers. It has all nodes that this needs, so a mask that
    two pieces need is in both. Any other graph output belongs to the piece after the last cut whose
    values it takes, unless an earlier piece needs less than half as many additional nodes for it.

    A cut with a value that the graph does not have is ignored: the pieces on both sides become one,
    which also makes the other values of that cut.
    """
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    reads = [reads_of(node) for node in graph.node]

    def needed(
        names: Collection[str], available: Collection[str], done: Collection[int] = ()
    ) -> set[int]:
        """Return the nodes, other than the known ones, that compute values from given ones."""
        result: set[int] = set()
        pending = list(names)
        while pending:
            place = maker.get(pending.pop())
            if place is not None and place not in result and place not in done:
                result.add(place)
                pending += [name for name in reads[place] if name not in available]
        return result

    sound = [cut for cut in cuts if maker.keys() >= set(cut)]
    borders = [frozenset[str](), *map(frozenset, sound)]
    ends = zip((*sound, ()), borders, strict=True)
    outputs = [[name for name in cut if name not in before] for cut, before in ends]
    nodes = list(map(needed, outputs, borders))
    others = [name for cut in cuts for name in cut if name in maker]
    after = {name: i for i in range(len(sound), 0, -1) for name in sound[i - 1]}
    for name in dict.fromkeys((*(value.name for value in graph.output), *others)):
        if name not in after:
            inputs = {read for i in needed([name], after) for read in reads[i]}
            last = max((after[each] for each in inputs & after.keys()), default=0)
            further = [len(needed([name], borders[i], nodes[i])) for i in range(last + 1)]
            least = min(further)
            outputs[last if further[last] <= 2 * least else further.index(least)].append(name)
    nodes = list(map(needed, outputs, borders))
    return tuple(_step(graph, sorted(n), own) for n, own in zip(nodes, outputs, strict=True))


def _step(graph: onnx.GraphProto, nodes: Sequence[int], outputs: Sequence[str]) -> SegmentStep:
    """Return a piece; an output that no node makes is an input or an initializer of the graph."""
    step = segment(graph, nodes)
    passed = set(outputs) - set(step.outputs)
    weights = {tensor.name for tensor in graph.initializer}
    return replace(
        step,
        outputs=tuple(outputs),
        inputs=tuple(dict.fromkeys((*step.inputs, *sorted(passed - weights)))),
        initializers=tuple(dict.fromkeys((*step.initializers, *sorted(passed & weights)))),
    )


class Pieces:
    """The pieces of a model file as models of their own, which refer to its weights and contexts.

    Args:
        source: the file; its weights are not read.
        cuts: cuts between the pieces.

    Attributes:
        steps: the pieces, as `split` returns them.
        outputs: names of the whole model's outputs.
        crossing: names of the values that go from one piece to another.

    Raises:
        ModelError: the file cannot be read.
    """

    def __init__(self, source: ModelSource, cuts: Cuts) -> None:
        self._model = sessions.mapped(source)
        graph = self._model.graph
        self.steps = split(graph, cuts)
        self.outputs = tuple(value.name for value in graph.output)
        produced = {name for step in self.steps for name in step.outputs}
        self.crossing = produced.intersection(name for cut in cuts for name in cut)

    def inputs_of(self, step: SegmentStep, feeds: Feeds, values: Values) -> Feeds | None:
        """Return the inputs of a piece: inputs of the whole model, and values of other pieces. None
        if a value is missing.
        """
        crossing = self.crossing.intersection(step.inputs)
        crossing_values = values.read(feeds, crossing)
        if not crossing_values.keys() >= crossing:
            return None
        return crossing_values | {name: feeds[name] for name in step.inputs if name in feeds}

    def model(self, step: SegmentStep, given: Feeds | None = None) -> onnx.ModelProto:
        """Return the model of a piece. Its crossing values have the types of `given`, or those that
        the file declares.
        """
        model = SegmentBuilder(self._model).build(step)
        arrays = given or {}
        for port in model.graph.input:
            if port.name in self.crossing & arrays.keys():
                value = arrays[port.name]
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                port.CopyFrom(helper.make_tensor_value_info(port.name, kind, value.shape))
        return model

    def run(
        self,
        open_: Open,
        feeds: Feeds,
        values: Values | None = None,
        *,
        times: int = 1,
        inner: bool = False,
    ) -> dict[str, Array]:
        """Open, run and close one piece after the other; return the model's outputs. Values and
        errors are as in `sessions.run_source`.

        Args:
            values: kept values of the pieces; a piece whose values are kept is not run again. None
                to keep no values.
            times: as in `run_one`.
            inner: values that cross from piece to piece are outputs, too.
        """
        if values is None:
            with tempfile.TemporaryDirectory(prefix="epctx-pieces-") as folder:
                own = Values(Path(folder), "model")
                return self.run(open_, feeds, own, times=times, inner=inner)
        recordings.write(values.folder, values.place(0), feeds, feeds)
        for number, step in enumerate(self.steps, start=1):
            place = values.place(number)
            if step.outputs and not recordings.has(values.folder, place, feeds):
                outputs = self.run_one(open_, step, feeds, values, times=times)
                recordings.write(values.folder, place, feeds, outputs)
                del outputs
        return values.read(feeds, (*self.outputs, *(sorted(self.crossing) if inner else ())))

    def run_one(
        self, open_: Open, step: SegmentStep, feeds: Feeds, values: Values, *, times: int = 1
    ) -> dict[str, Array]:
        """Return the outputs of one piece for kept values; empty if a value is missing.

        Args:
            times: number of runs in its session; the last outputs count. A node that draws random
                numbers draws the same in the first run of each session.
        """
        inputs = self.inputs_of(step, feeds, values)
        if inputs is None:
            return {}
        session = open_(changed=self.model(step, inputs).SerializeToString())
        for _ in range(times):
            outputs = sessions.run_source(session, inputs)
        return outputs


def zero_points(graph: onnx.GraphProto) -> dict[str, float]:
    """Return the zero points of QuantizeLinear's outputs, by output name. Only zero points that are
    missing, or are one number in an initializer, are known.
    """
    scalars = {t.name: t for t in graph.initializer if math.prod(t.dims) == 1}
    zeros: dict[str, float] = {}
    for node in graph.node:
        zero = node.input[2] if len(node.input) > 2 else ""
        if node.op_type == "QuantizeLinear" and (not zero or zero in scalars):
            value = numpy_helper.to_array(scalars[zero]).item() if zero else 0
            zeros[node.output[0]] = float(value)
    return zeros
