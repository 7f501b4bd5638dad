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
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import numpy as np
import onnx
import onnxruntime as ort
from msgspec.structs import replace
from onnx import helper, numpy_helper

from epctx.graph.epcontext import Cuts
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource
from epctx.runtime.feeds import Feeds
from epctx.runtime.split import SegmentBuilder, SegmentStep, reads_of, segment
from epctx.verification.numbers import recordings, sessions

PIECES: Final = "pieces"
CHAIN: Final = "chain"
RIGHT: Final = "right"
"""Below a model: outputs of its pieces, in a folder for each, from 1 on. Those of the files were
computed from the source's values, and from what the piece before has computed. Of a source, 0 has
the inputs of the whole model. Below a piece that the session ran which compiled it: what was right
then; the pieces before may have other weights by now."""


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

    def needed(names: Collection[str], given: Collection[str], known: set[int]) -> set[int]:
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
    outputs = [
        [name for name in cut if name not in before]
        for cut, before in zip(sound, given, strict=False)
    ]
    outputs.append([])
    nodes = [needed(own, before, set()) for own, before in zip(outputs, given, strict=True)]
    others = [name for cut in cuts for name in cut if name in maker]
    after = {name: i for i in range(len(sound), 0, -1) for name in sound[i - 1]}
    for name in dict.fromkeys((*(value.name for value in graph.output), *others)):
        if name not in after:
            taken = {read for i in needed([name], after, set()) for read in reads[i]}
            last = max((after[each] for each in taken & after.keys()), default=0)
            further = [len(needed([name], given[i], nodes[i])) for i in range(last + 1)]
            least = min(further)
            outputs[last if further[last] <= 2 * least else further.index(least)].append(name)
    return tuple(
        _step(graph, sorted(needed(own, before, set())), own)
        for own, before in zip(outputs, given, strict=True)
    )


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
        cuts: where it was cut.
        typed: the types that the file declares of crossing values hold. If not, the values have
            the types that they were computed with.

    Attributes:
        steps: as of `split`.
        outputs: names of the whole model's outputs.
        crossing: names of the values that go from one piece to another.

    Raises:
        ModelError: the file cannot be read.
    """

    def __init__(self, source: ModelSource, cuts: Cuts, *, typed: bool) -> None:
        self._model = sessions.mapped(source)
        graph = self._model.graph
        self.steps = split(graph, cuts)
        self.outputs = tuple(value.name for value in graph.output)
        made = {name for step in self.steps for name in step.outputs}
        self.crossing = made.intersection(name for cut in cuts for name in cut)
        if not typed:
            declared = [value for value in graph.value_info if value.name not in made]
            del graph.value_info[:]
            graph.value_info.extend(declared)

    def given(self, step: SegmentStep, feeds: Feeds, folder: Path, place: str) -> Feeds | None:
        """Return what a piece is run on: inputs of the whole model, and values of other pieces.

        Args:
            step: the piece.
            feeds: inputs of the whole model.
            folder, place: where the values of pieces are kept.

        Returns:
            None if a value is not there.
        """
        crossing = self.crossing.intersection(step.inputs)
        found = kept(folder, place, feeds, crossing)
        if found.keys() < crossing:
            return None
        return found | {name: feeds[name] for name in step.inputs if name in feeds}

    def model(self, step: SegmentStep, given: Feeds) -> onnx.ModelProto:
        """Return the model of a piece that is run on these values."""
        builder = SegmentBuilder(self._model)
        for name in self.crossing & given.keys():
            kind = helper.np_dtype_to_tensor_dtype(given[name].dtype)
            builder.learn([helper.make_tensor_value_info(name, kind, given[name].shape)])
        return builder.build(step)


class Chain:
    """A session of a source in pieces: it opens, runs and closes one piece after the other.

    Args:
        pieces: of the source.
        open_: opens a session of the model of a piece.
        inner: values that cross from piece to piece are outputs, too.
    """

    def __init__(
        self,
        pieces: Pieces,
        open_: Callable[[bytes], ort.InferenceSession],
        *,
        inner: bool = False,
    ) -> None:
        self._pieces = pieces
        self._open = open_
        self._outputs = pieces.outputs + (tuple(sorted(pieces.crossing)) if inner else ())

    def run(
        self, feeds: Feeds, keep: tuple[Path, str] | None = None, *, times: int = 1
    ) -> dict[str, Array]:
        """Return the model's outputs, as `sessions.run_source` does. Raises as that.

        Args:
            keep: folder, and model in it, where the values of the pieces are kept. A piece whose
                values are there is not run again. None if nothing is to stay.
            times: how often each piece runs in its session; the last outputs count. A node that
                draws random numbers gives the same in the first run of each session.
        """
        with ExitStack() as stack:
            if keep is None:
                made = stack.enter_context(tempfile.TemporaryDirectory(prefix="epctx-pieces-"))
                keep = Path(made), "model"
            folder, place = keep[0], f"{keep[1]}/{PIECES}"
            recordings.write(folder, f"{place}/0", feeds, feeds)
            for number, step in enumerate(self._pieces.steps, start=1):
                own = f"{place}/{number}"
                if step.outputs and not recordings.has(folder, own, feeds):
                    given = self._pieces.given(step, feeds, folder, place)
                    assert given is not None
                    session = self._open(self._pieces.model(step, given).SerializeToString())
                    for _ in range(times):
                        outputs = sessions.run_source(session, given)
                    del session
                    recordings.write(folder, own, feeds, outputs)
                    del outputs, given
            return kept(folder, place, feeds, self._outputs)

    def run_apart(self, number: int, feeds: Feeds, folder: Path, place: str) -> dict[str, Array]:
        """Return what one piece computes on values that are kept; nothing if one is not there.
        Raises as `run`.

        Args:
            number: of the piece, from 1 on.
            feeds: inputs of the whole model.
            folder, place: where the values of pieces are kept.
        """
        step = self._pieces.steps[number - 1]
        given = self._pieces.given(step, feeds, folder, place)
        if given is None:
            return {}
        session = self._open(self._pieces.model(step, given).SerializeToString())
        return sessions.run_source(session, given)


def kept(folder: Path, place: str, feeds: Feeds, names: Collection[str]) -> dict[str, Array]:
    """Return those of the named values that pieces have computed, in the order of `names`.

    Args:
        folder, place: where the values of pieces are kept: `<model>/PIECES` or `<model>/CHAIN`.
        feeds: inputs of the whole model.
        names: of values; the parts of a sequence are found by its name.

    Raises:
        StorageError: what was kept cannot be read.
    """
    order = {name: number for number, name in enumerate(names)}
    values: dict[str, Array] = {}
    rank: dict[str, int] = {}
    for piece in folder.joinpath(place).glob("[0-9]*") if order else ():
        outputs = recordings.read(folder, f"{place}/{piece.name}", feeds) or {}
        for name, value in outputs.items():
            whole = name if name in order else name.partition("[")[0].partition("{")[0]
            if whole in order:
                values[name], rank[name] = value, order[whole]
    return {name: values[name] for name in sorted(values, key=rank.__getitem__)}


def zero_points(graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the zero points of what QuantizeLinear makes, by its name: as far as each is one
    number of an initializer, or none is given.
    """
    constants = {tensor.name: tensor for tensor in graph.initializer}
    found: dict[str, Array] = {}
    for node in graph.node:
        if node.op_type != "QuantizeLinear":
            continue
        name = node.input[2] if len(node.input) > 2 else ""
        if not name:
            found[node.output[0]] = np.zeros((), np.int32)
        elif name in constants and math.prod(constants[name].dims) == 1:
            found[node.output[0]] = numpy_helper.to_array(constants[name]).reshape(())
    return found
