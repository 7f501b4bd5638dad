"""Models of the kinds that people deploy, by what their outputs mean; seeded and small.

Each runs on ONNX Runtime, so that expected outputs, types and the nodes behind an output are real:
boxes are in pixels, scores are Sigmoids, a Softmax is decided.
"""

from __future__ import annotations

import tempfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import numpy as np
import onnx
from onnx import TensorProto

from epctx.manifest import ModelSource, VerifyInputs
from epctx.verification.numbers.expected import Expected
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.source_model import SourceModel
from epctx.verification.numbers.unoptimized import Rerun
from tests.mutation import architectures, task
from tests.mutation.architectures import FLOAT, Net
from tests.mutation.liar.epctx_liar.faults import OF_CLASSES, OF_PROBABILITIES, Place
from tests.mutation.task import Outputs, Task

SEED: Final = 22
"""Makes detectors that detect something, and classifiers that are sure."""
SETS: Final = 2
"""Input sets: the least that tell an output of another run."""
Inputs = Mapping[str, tuple[int, ...]]
IMAGE: Final[Inputs] = {"image": (1, 3, 40, 40)}
VECTOR: Final[Inputs] = {"x": (1, 32)}
ROWS: Final[Inputs] = {"x": (16, 32)}
TURNED: Final = [0, 2, 1]
SCORE: Final = (OF_PROBABILITIES,)
CLASSES: Final = (OF_CLASSES,)
SCORES: Final = (OF_PROBABILITIES, OF_CLASSES)
Write = Callable[[Net], str | tuple[str, ...]]
"""Writes a graph, and gives the names of its outputs."""


@dataclass(frozen=True)
class Kind:
    """A kind of model.

    Attributes:
        name: words of the table's legend.
        model: makes it.
        task: measures what a fault does to its users, 0 to 1.
        place: channels of the attacked output, and the part that is small or matters most.
        faults: of those for probabilities and classes, the ones that it has a place for.
        output: index of the attacked output.
        floating: the attacked output is computed in floating point throughout.
    """

    name: str
    model: Callable[[], onnx.ModelProto]
    task: Task
    place: Place
    faults: tuple[str, ...]
    output: int
    floating: bool


KINDS: Final[dict[str, Kind]] = {}
"""All kinds, by the heads of the table's columns."""


def kind(
    head: str,
    name: str,
    inputs: Inputs,
    task: Task,
    place: tuple[int, ...] = (),
    faults: tuple[str, ...] = (),
    *,
    output: int = 0,
    quantized: Sequence[str] | None = None,
    floating: bool = True,
) -> Callable[[Write], Write]:
    """Add the kind of a function; `quantized`: in 8 bits, but for the nodes of these ops."""

    def add(write: Write) -> Write:
        def model() -> onnx.ModelProto:
            net = Net(SEED + zlib.crc32(head.encode()))
            outputs = write(net)
            made = net.model(inputs, *((outputs,) if isinstance(outputs, str) else outputs))
            if quantized is None:
                return made
            with tempfile.TemporaryDirectory() as folder:
                return architectures.quantize(made, Path(folder), quantized)

        exact = floating and quantized is None
        KINDS[head] = Kind(name, model, task, Place(*place), faults, output, exact)
        return write

    return add


def trunk(net: Net) -> str:
    """Features of an image: 16 channels of 20 by 20."""
    x = net("Relu", net.conv("image", 3, 16, stride=2))
    return net("Tanh", net.conv(x, 16, 16))


def anchors(net: Net, x: str, channels: int, gain: float, bias: float = 0.0) -> str:
    """One value for each channel and anchor, [1, channels, 400]."""
    flat = net("Reshape", net.conv(x, 16, channels, 1), net.ints(1, channels, -1))
    return net.affine(flat, gain, bias)


def points(net: Net, x: str, near: str, pixels: float) -> str:
    """Points near others, [1, 2, 400]."""
    return net("Add", net.affine(net("Tanh", anchors(net, x, 2, 1.0)), pixels), near)


def centers(net: Net, x: str) -> str:
    """Centers of boxes in pixels, near the anchors."""
    rows, columns = (32 * (axis.reshape(-1) + 0.5) for axis in np.mgrid[:20, :20])
    return points(net, x, net.floats(np.stack([columns, rows])[None]), 24.0)


def sizes(net: Net, x: str) -> str:
    """Widths and heights of boxes in pixels."""
    return net.affine(net("Sigmoid", anchors(net, x, 2, 2.0)), 200.0, 30.0)


def corners(net: Net, x: str) -> str:
    """Corners of boxes, [1, 400, 4]."""
    center, half = centers(net, x), net.affine(sizes(net, x), 0.5)
    found = net("Concat", net("Sub", center, half), net("Add", center, half), axis=1)
    return net("Transpose", found, perm=TURNED)


def scores(net: Net, x: str, classes: int) -> str:
    """Scores, [1, classes, 400]: a few anchors are sure of a class."""
    return net("Sigmoid", anchors(net, x, classes, 4.0, -5.0 - 1.2 * float(np.log2(classes))))


def yolo(classes: int) -> Write:
    """Boxes and scores in one output."""

    def write(net: Net) -> str:
        x = trunk(net)
        return net("Concat", centers(net, x), sizes(net, x), scores(net, x, classes), axis=1)

    return write


kind("Y1", "YOLO, one class, [1, 5, 400]", IMAGE, task.yolo, (1, 4), SCORE)(yolo(1))
kind("Y3", "YOLO, three classes, [1, 7, 400]", IMAGE, task.yolo, (1, 4), SCORES)(yolo(3))
kind("Y80", "YOLO, 80 classes, [1, 84, 400]", IMAGE, task.yolo, (1, 4), SCORES)(yolo(80))


@kind("E2E", "end-to-end detector, [1, 300, 6]", IMAGE, task.end_to_end, (2, 4, 5), SCORE)
def end_to_end(net: Net) -> str:
    """The best 300 anchors as corners, score and class."""
    x = trunk(net)
    of_classes = scores(net, x, 3)
    best = net("ReduceMax", of_classes, net.ints(1), keepdims=0)
    score, index = net.several("TopK", best, net.ints(300), outputs=2, axis=-1)
    index = net("Reshape", index, net.ints(-1))
    label = net("Cast", net("ArgMax", of_classes, axis=1, keepdims=0), to=FLOAT)
    columns = score, net("Gather", label, index, axis=1)
    corner = net("Gather", corners(net, x), index, axis=1)
    return net("Concat", corner, *(net("Unsqueeze", c, net.ints(2)) for c in columns), axis=2)


@kind("Y5", "YOLOv5 with objectness, [1, 400, 85]", IMAGE, task.yolo_v5, (2, 4), SCORE)
def yolo_v5(net: Net) -> str:
    """Boxes, objectness and 80 classes."""
    x = trunk(net)
    sure = [net("Sigmoid", anchors(net, x, *each)) for each in ((1, 4.0), (80, 4.0, -5.0))]
    return net(
        "Transpose", net("Concat", centers(net, x), sizes(net, x), *sure, axis=1), perm=TURNED
    )


@kind("2O", "boxes beside scores, [1, 400, 3]", IMAGE, task.two_outputs, (2,), SCORES, output=1)
def two_outputs(net: Net) -> tuple[str, ...]:
    """Corners, and scores of three classes."""
    x = trunk(net)
    return corners(net, x), net("Transpose", scores(net, x, 3), perm=TURNED)


@kind("PO", "pose, [1, 56, 400]", IMAGE, task.pose, (1, 4, 5), SCORE)
def pose(net: Net) -> str:
    """A box, its score, and 17 points with visibility."""
    x = trunk(net)
    center = centers(net, x)
    columns = [center, sizes(net, x), scores(net, x, 1)]
    for _ in range(17):
        columns += points(net, x, center, 60.0), net("Sigmoid", anchors(net, x, 1, 3.0))
    return net("Concat", *columns, axis=1)


@kind("FA", "faces, [1, 200, 15]", IMAGE, task.faces, (2, 14), SCORE)
def faces(net: Net) -> str:
    """A box, five points and a score, for every second anchor."""
    x = trunk(net)
    center = centers(net, x)
    near = [points(net, x, center, 30.0) for _ in range(5)]
    joined = net("Concat", center, sizes(net, x), *near, scores(net, x, 1), axis=1)
    steps = (net.ints(each) for each in (0, 400, 2, 2))
    return net("Transpose", net("Slice", joined, *steps), perm=TURNED)


@kind("KP", "keypoints, [1, 17, 3]", VECTOR, task.keypoints, (2, 2), SCORE)
def keypoints(net: Net) -> str:
    """17 points of one body in pixels, with scores."""
    values = net("Sigmoid", net("Reshape", head(net, 51, 2.0), net.ints(1, 17, 3)))
    return net("Mul", values, net.floats([640, 640, 1]))


def head(net: Net, count: int, gain: float = 1.0, bias: float = 0.0) -> str:
    """Numbers from a vector, about as large as `gain`."""
    return net.affine(net.linear(net("Relu", net.linear("x", 32, 64)), 64, count), gain, bias)


def softmax(net: Net) -> str:
    """Probabilities of 100 classes."""
    return net("Softmax", head(net, 100, 7.0), axis=-1)


def one_sigmoid(bias: float) -> Write:
    """One probability."""
    return lambda net: net("Sigmoid", head(net, 1, 1.0, bias))


kind("SM", "Softmax of 100 classes", VECTOR, task.probabilities, (), SCORES)(softmax)
kind("LG", "logits of 1000 classes", VECTOR, task.logits, (), CLASSES)(lambda n: head(n, 1000, 7.0))
kind("SG", "one Sigmoid, [1, 1]", VECTOR, task.probability, (), SCORE)(one_sigmoid(1.0))
kind("VO", "voice, a Sigmoid near 0", VECTOR, task.probability, (), SCORE)(one_sigmoid(-7.0))
kind("EM", "embedding, [1, 384]", VECTOR, task.embedding)(lambda net: head(net, 384))


@kind("EN", "normalized embedding, [1, 384]", VECTOR, task.embedding)
def normalized(net: Net) -> str:
    """An embedding of length 1."""
    return net("LpNormalization", head(net, 384), axis=-1)


@kind("BF", "bfloat16 embedding, [1, 256]", VECTOR, task.embedding)
def in_bfloat16(net: Net) -> str:
    """An embedding whose output is bfloat16."""
    return net("Cast", head(net, 256), to=TensorProto.BFLOAT16)


@kind("LM", "logits of 8000 tokens, [1, 8, 8000]", {"x": (1, 8, 48)}, task.logits, (), CLASSES)
def language(net: Net) -> str:
    """Logits of a language model at 8 positions."""
    return net("MatMul", net.layer_norm("x", 48), net.weight(48, 8000, scale=4 * 48**-0.5))


@kind("AM", "attention scores with a mask of -1e9", {"x": (1, 14, 24)}, task.logits, (), CLASSES)
def masked(net: Net) -> str:
    """Attention scores of three heads with an additive mask."""
    mask = np.triu(np.full((1, 1, 14, 14), -1e9), 1)
    return net.attention(net.layer_norm("x", 24), 14, 24, 3, mask)[1]


def smooth(net: Net, channels: int, gain: float) -> str:
    """A map of 40 by 40 with channels, smooth as maps are."""
    x = net("AveragePool", net("Tanh", net.conv("image", 3, 16)), kernel_shape=[5, 5], pads=[2] * 4)
    return net.affine(net.conv(x, 16, channels, 1), gain)


@kind("SE", "classes of pixels, [1, 8, 40, 40]", IMAGE, task.segments, (1,), CLASSES)
def segments(net: Net) -> str:
    """Logits of 8 classes of each pixel."""
    return smooth(net, 8, 6.0)


@kind("MA", "mask, a Sigmoid, [1, 1, 40, 40]", IMAGE, task.mask, (1,), SCORE)
def mask(net: Net) -> str:
    """A mask whose pixels are decided."""
    return net("Sigmoid", smooth(net, 1, 30.0))


@kind("DE", "depth, 0 to 255, [1, 1, 40, 40]", IMAGE, task.regression, (1,))
def depth(net: Net) -> str:
    """A map of distances."""
    return net.affine(net("Sigmoid", smooth(net, 1, 4.0)), 255.0)


@kind("IN", "int64 labels, [1, 40, 40]", IMAGE, task.labels, floating=False)
def labels(net: Net) -> str:
    """The class of each pixel."""
    return net("ArgMax", smooth(net, 8, 1.0), axis=1, keepdims=0)


@kind("BO", "booleans, [1, 40]", VECTOR, task.labels, floating=False)
def flags(net: Net) -> str:
    """Decisions."""
    return net("Greater", head(net, 40), net.floats(0))


@kind("ST", "strings, [16]", ROWS, task.labels, floating=False)
def words(net: Net) -> str:
    """The names of the classes of rows."""
    best = net("ArgMax", head(net, 6), axis=-1, keepdims=0)
    table = {"keys_int64s": range(6), "values_strings": list("abcdef")}
    return net("LabelEncoder", best, domain="ai.onnx.ml", **table)


def columns(*units: float) -> Write:
    """A regression whose columns have units of their own."""
    return lambda net: net("Mul", head(net, len(units)), net.floats(units))


LONG: Final[Inputs] = {"x": (1, 100, 32)}
MEASURE: Final = task.regression
kind("R3", "regression, 1e6, 1, 1e-3, [16, 3]", ROWS, MEASURE, (1, 2))(columns(1e6, 1, 1e-3))
kind("R2", "regression, 1e6, 1e-3, [1, 100, 2]", LONG, MEASURE, (2, 1))(columns(1e6, 1e-3))
kind("R6", "regression, 1e4 to 1e-2, [1, 6]", VECTOR, MEASURE, (1, 5))(
    columns(1e4, 1e3, 100, 1, 0.1, 0.01)
)


@kind("FO", "forecast, [1, 96, 4]", VECTOR, task.regression, (2, 3))
def forecast(net: Net) -> str:
    """Four series of 96 steps: a level, and changes that add up."""
    change = net("Reshape", head(net, 384), net.ints(1, 96, 4))
    summed = net("CumSum", change, net.ints(1))
    return net("Add", net("Mul", summed, net.floats([20, 5, 1, 0.2])), net.floats([900, 80, 5, 1]))


@kind("64", "float64 regression, [16, 8]", ROWS, task.regression, (1, 7))
def in_double(net: Net) -> str:
    """A regression in float64."""
    net.dtype = np.float64
    return head(net, 8)


@kind("16", "regression beside a branch in float16, [16, 8]", ROWS, task.regression)
def beside_float16(net: Net) -> tuple[str, ...]:
    """A regression in float32, and a second output that float16 computes."""
    half = net("Cast", net.linear("x", 32, 8), to=TensorProto.FLOAT16)
    scaled = net("Mul", half, net.constant(np.array(0.5, np.float16)))
    return head(net, 8), net("Cast", scaled, to=FLOAT)


@kind("8", "regression beside a branch in 8 bits, [16, 8]", ROWS, task.regression)
def beside_integers(net: Net) -> tuple[str, ...]:
    """A regression in float32, and a second output that was quantized."""
    less = net.several("DynamicQuantizeLinear", net.linear("x", 32, 8), outputs=3)
    return head(net, 8), net("DequantizeLinear", *less)


kind("Q", "logits in 8 bits, [1, 20]", VECTOR, task.logits, (), CLASSES, quantized=())(
    lambda net: head(net, 20, 5.0)
)
kind("QY", "Y3 in 8 bits but its Concat", IMAGE, task.yolo, (1, 4), SCORES, quantized=["Concat"])(
    yolo(3)
)


@dataclass(frozen=True)
class Run:
    """A kind's model as verification has it, with its right outputs by input set."""

    source: SourceModel
    outputs: Mapping[str, Outputs]
    again: Rerun


FOLDER: Final = tempfile.TemporaryDirectory()


@cache
def prepared(head: str) -> Run:
    """Run a kind's model on generated inputs, once for a process.

    Its own nodes run, without optimizations: fused ones in 8 bits depend on the CPU.
    """
    path = Path(FOLDER.name) / f"{head}.onnx"
    onnx.save(KINDS[head].model(), path)
    source = SourceModel.read(ModelSource(name=head, path=path))
    sets = InputSets(VerifyInputs(count=SETS))
    cases = {case.label: case for case in sets.cases(source.inputs)}
    expected = Expected(source, source.inputs, sets)
    again = Rerun(lambda given, optimized: expected.compute(given, False), cases)
    return Run(source, {label: again.unoptimized(label) for label in cases}, again)
