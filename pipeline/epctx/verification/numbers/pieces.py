"""Models in pieces: each piece is a model of its own, and one of them is open at a time.

A model too large for one context is compiled in pieces. Its file has the EPContext nodes of all
pieces in a row, and says in its metadata which values cross from one piece to the next
(`graph.epcontext.PIECES`). The same names cut its source. So either of them runs piece after piece
in the memory of its largest piece. What pieces compute is kept on disk by the inputs of the whole
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
"""Below a model: outputs of its pieces, in a folder for each, from 1 on. Those of the files were
computed from the source's values, and from what the piece before has computed. Of a source, 0 has
the inputs of the whole model. Below a piece that the session ran which compiled it: what was right
then; the pieces before may have other weights by now."""


Open = Callable[..., ort.InferenceSession]
"""Opens a session of a model that is `changed`, as `sessions.open_source`."""


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
        """Return those of the named values that pieces have computed, in the order of `names`; the
        parts of a sequence are found by its name. Raises StorageError.
        """
        order = {name: number for number, name in enumerate(names)}
        found: list[tuple[int, str, Array]] = []
        for piece in (self.folder / self.model / self.kind).glob("[0-9]*") if order else ():
            outputs = recordings.read(self.folder, self.place(int(piece.name)), feeds) or {}
            for name, value in outputs.items():
                whole = name if name in order else name.partition("[")[0].partition("{")[0]
                if whole in order:
                    found.append((order[whole], name, value))
        return {name: value for _, name, value in sorted(found, key=itemgetter(0))}


def split(graph: onnx.GraphProto, cuts: Cuts) -> tuple[SegmentStep, ...]:
    """Return the pieces of a graph, each with the values that it must be given and those it makes.

    Piece *i* makes the values that cut *i* adds to the cut before, from the values of that one,
    graph inputs and initializers. It computes everything else that this takes, so a mask that two
    pieces need is a node of both. Any other graph output belongs to the piece after the last cut
    whose values it takes, unless an earlier piece needs less than half the further nodes for it.

    A cut with a value that the graph does not have separates nothing: the pieces on both sides are
    one, which also makes the other values of that cut.
    """
    maker = {name: i for i, node in enumerate(graph.node) for name in node.output if name}
    reads = [reads_of(node) for node in graph.node]

    def needed(
        names: Collection[str], given: Collection[str], known: Collection[int] = ()
    ) -> set[int]:
        """Return the nodes, other than the known ones, that compute values from given ones."""
        found: set[int] = set()
        left = list(names)
        while left:
            place = maker.get(left.pop())
            if place is not None and place not in found and place not in known:
                found.add(place)
                left += [name for name in reads[place] if name not in given]
        return found

    sound = [cut for cut in cuts if maker.keys() >= set(cut)]
    given = [frozenset[str](), *map(frozenset, sound)]
    ends = zip((*sound, ()), given, strict=True)
    outputs = [[name for name in cut if name not in before] for cut, before in ends]
    nodes = list(map(needed, outputs, given))
    others = [name for cut in cuts for name in cut if name in maker]
    after = {name: i for i in range(len(sound), 0, -1) for name in sound[i - 1]}
    for name in dict.fromkeys((*(value.name for value in graph.output), *others)):
        if name not in after:
            taken = {read for i in needed([name], after) for read in reads[i]}
            last = max((after[each] for each in taken & after.keys()), default=0)
            further = [len(needed([name], given[i], nodes[i])) for i in range(last + 1)]
            least = min(further)
            outputs[last if further[last] <= 2 * least else further.index(least)].append(name)
    nodes = list(map(needed, outputs, given))
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
        steps: as of `split`.
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
        made = {name for step in self.steps for name in step.outputs}
        self.crossing = made.intersection(name for cut in cuts for name in cut)

    def given(self, step: SegmentStep, feeds: Feeds, values: Values) -> Feeds | None:
        """Return the inputs of a piece: inputs of the whole model, and values of other pieces. None
        if a value is missing.
        """
        crossing = self.crossing.intersection(step.inputs)
        found = values.read(feeds, crossing)
        if not found.keys() >= crossing:
            return None
        return found | {name: feeds[name] for name in step.inputs if name in feeds}

    def model(self, step: SegmentStep, given: Feeds | None = None) -> onnx.ModelProto:
        """Return the model of a piece. It takes crossing values of the types of the given ones, or
        as the file declares them.
        """
        model = SegmentBuilder(self._model).build(step)
        known = given or {}
        for taken in model.graph.input:
            if taken.name in self.crossing & known.keys():
                value = known[taken.name]
                kind = helper.np_dtype_to_tensor_dtype(value.dtype)
                taken.CopyFrom(helper.make_tensor_value_info(taken.name, kind, value.shape))
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
        """Return the model's outputs, as `sessions.run_source` does: open, run and close one piece
        after the other. Raises as that.

        Args:
            values: kept values of the pieces; a piece whose values are kept is not run again. None
                if no values are to be kept.
            times: as of `run_one`.
            inner: values that cross from piece to piece are outputs, too.
        """
        if values is None:
            with tempfile.TemporaryDirectory(prefix="epctx-pieces-") as made:
                own = Values(Path(made), "model")
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
            times: how often it runs in its session; the last outputs count. A node that draws
                random numbers gives the same in the first run of each session.
        """
        given = self.given(step, feeds, values)
        if given is None:
            return {}
        session = open_(changed=self.model(step, given).SerializeToString())
        for _ in range(times):
            outputs = sessions.run_source(session, given)
        return outputs


def zero_points(graph: onnx.GraphProto) -> dict[str, float]:
    """Return the zero points of what QuantizeLinear makes, by its name: as far as each is one
    number of an initializer, or none is given.
    """
    known = {t.name: t for t in graph.initializer if math.prod(t.dims) == 1}
    found: dict[str, float] = {}
    for node in graph.node:
        zero = node.input[2] if len(node.input) > 2 else ""
        if node.op_type == "QuantizeLinear" and (not zero or zero in known):
            value = numpy_helper.to_array(known[zero]).item() if zero else 0
            found[node.output[0]] = float(value)
    return found
