"""Small models, mutated, through load and optimize in a worker as a build has it.

What a library does with such a model may crash or not end; then the worker is ended, and less is
inferred. A finding is what no user should see: a bug's error, a crash that nothing watches, or more
time than a job may take.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

import onnx
from onnx import TensorProto, numpy_helper

from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.engine.actions import optimize
from epctx.engine.executor import one
from epctx.errors import EpctxError, ModelError
from epctx.graph.serde import protos
from epctx.manifest import ModelSource, OptimizeSettings
from epctx.worker.pool import Pool
from tests.fuzz.graphs.models import draw_model
from tests.kit import oddities

EXTREME: Final = (-(2**63), -(2**62), -(2**32), -(2**31), -1, 0, 1, 2**31, 2**32, 2**62, 2**63 - 1)
OPERATORS: Final = (
    "Add", "Sub", "Mul", "Concat", "Gather", "Slice", "Shape", "Size", "Squeeze", "Unsqueeze",
    "Cast", "Range", "Expand", "Tile", "ConstantOfShape", "Resize", "Pad", "Reshape", "Transpose",
    "Split", "NonZero", "TopK", "OneHot", "EyeLike", "Loop", "If", "Scan",
)  # fmt: skip
TIMEOUT: Final = 120.0
"""Seconds that a job may take, whatever the model."""


def model(seed: int) -> bytes:
    """A mutated model; the same for the same seed."""
    generator = random.Random(seed)
    if generator.random() < 0.3:
        make = generator.choice(sorted(oddities.FORBIDDEN.items()))[1]
        proto = onnx.ModelProto.FromString(make().SerializeToString())
    else:
        proto = onnx.ModelProto.FromString(draw_model(seed).proto.SerializeToString())
    for _ in range(generator.randint(1, 5)):
        mutation = generator.choice((_constant, _attribute, _operator, _wire, _again, _size))
        mutation(proto, generator)
    data: bytes = proto.SerializeToString()
    return data


def _constant(proto: onnx.ModelProto, generator: random.Random) -> None:
    """An element of an integer constant becomes extreme."""
    found = [t for t in protos.tensors(proto) if t.data_type == TensorProto.INT64]
    if not found:
        return
    tensor = generator.choice(found)
    array = numpy_helper.to_array(tensor).copy()
    if array.size:
        array.reshape(-1)[generator.randrange(array.size)] = generator.choice(EXTREME)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _attribute(proto: onnx.ModelProto, generator: random.Random) -> None:
    """A whole number of an attribute becomes extreme."""
    found = [a for node in protos.nodes(proto) for a in node.attribute if a.ints or a.i]
    if found:
        attribute = generator.choice(found)
        attribute.i = generator.choice(EXTREME) if attribute.i else 0
        for place in range(len(attribute.ints)):
            attribute.ints[place] = generator.choice((*EXTREME, attribute.ints[place]))


def _operator(proto: onnx.ModelProto, generator: random.Random) -> None:
    generator.choice(list(protos.nodes(proto))).op_type = generator.choice(OPERATORS)


def _wire(proto: onnx.ModelProto, generator: random.Random) -> None:
    """A node of the main graph reads what another makes, or a constant."""
    nodes = [node for node in proto.graph.node if node.input]
    names = [name for node in proto.graph.node for name in node.output]
    names += [tensor.name for tensor in proto.graph.initializer]
    if nodes and names:
        node = generator.choice(nodes)
        node.input[generator.randrange(len(node.input))] = generator.choice(names)


def _again(proto: onnx.ModelProto, generator: random.Random) -> None:
    """A value is joined with itself some times, and what made it reads that."""
    nodes = [node for node in proto.graph.node if node.output]
    before = generator.choice(nodes).output[0]
    for number in range(generator.choice((3, 26))):
        after = f"{before}/{number}"
        proto.graph.node.add(
            op_type="Concat", input=[before, before], output=[after]
        ).attribute.add(name="axis", type=onnx.AttributeProto.INT, i=0)
        before = after


def _size(proto: onnx.ModelProto, generator: random.Random) -> None:
    """A declared size becomes large."""
    dims = [d for value in protos.values(proto) for d in protos.dimensions(value.type)]
    if dims:
        generator.choice(dims).dim_value = generator.choice((0, 1, 7, 2**20, 2**31, 2**62))


def finding(data: bytes, folder: Path, run: Callable[[Optimize], OptimizeResult]) -> str | None:
    """What is wrong with how the model is loaded and optimized; None: nothing."""
    path = folder / "m.onnx"
    path.write_bytes(data)
    job = Optimize.of(ModelSource(name="m", path=path), OptimizeSettings(), folder / "optimized")
    try:
        optimize.run(job, run)
    except ModelError:
        return None
    except EpctxError as error:
        return str(error)
    return None


def findings(seeds: Sequence[int], folder: Path) -> Iterator[str]:
    """What is found with these seeds, in real workers."""
    pool = Pool(work=folder / "work", logs=folder / "logs")
    try:
        for seed in seeds:
            place = folder / str(seed)
            place.mkdir()
            with pool.lease(None) as lease:
                found = finding(model(seed), place, lambda job: one(lease, job, timeout=TIMEOUT))
            if found is not None:
                yield f"seed {seed}: {found}"
    finally:
        pool.close()
