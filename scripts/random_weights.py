"""Replace the constant weights of a model by seeded, fan-in-scaled random ones.

    python -m scripts.random_weights in.onnx out.onnx [--seed 0]

The light models of the onnx wheel (`onnx/backend/test/data/light`) make their weights with
ConstantOfShape, every element the same, so that their outputs do not depend on the input and any
comparison on them passes (real-eps.md section 15). Here each parameter of a Conv, Gemm, MatMul,
BatchNormalization or Caffe scale layer (Mul, Add of a parameter) gets numbers that keep the
activations finite and of about the same size from layer to layer:

- filters: uniform, of mean zero over each output's fan-in (so that what all inputs have in common
  does not drown what tells them apart), of a standard deviation that goes with 1/sqrt(fan-in);
- batch normalization and scales: around 1 (less where a residual Sum follows, which adds up over
  the blocks), variances positive; biases and means: around 0.

The same bytes on every machine (`scripts.seeded`). Weights are written as external data beside the
model (`<out>.data`), one tensor in memory at a time.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
from onnx_ir.passes import common as passes

from scripts import seeded

RECTIFIED_GAIN = 1.7
"""Standard deviation of a filter after a ReLU, times sqrt(fan-in): 1/sqrt(0.34), since ReLU leaves
0.34 of a normal variable's variance. Other filters have 1."""

AROUND: Mapping[str, tuple[float, float]] = {
    "scale": (1.0, 0.25),
    "residual scale": (0.5, 0.125),
    "variance": (1.0, 0.5),
    "bias": (0.0, 0.1),
}
"""Centre and spread of the parameters that are no filters."""

MOVES = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten"})
"""Ops through which a parameter reaches its consumer with its elements in the same order."""


@dataclass(frozen=True)
class Role:
    """What a parameter is for: its shape at the consumer; of a filter, also where its fan-in lies
    and its standard deviation times sqrt(fan-in).
    """

    kind: str
    shape: tuple[int, ...]
    fan_in_axes: tuple[int, ...] = ()
    gain: float = 1.0


def light_models() -> Mapping[str, Path]:
    """The light models of the installed onnx package, by short name (`resnet50`, ...)."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return {
        path.stem.removeprefix("light_").removeprefix("bvlc_"): path
        for path in sorted(folder.glob("light_*.onnx"))
    }


def convert(source: Path, target: Path, seed: int = 0) -> None:
    """Write `source` with random weights as `target`, its weights in `<target stem>.data`."""
    model = ir.load(source)
    randomize(model, seed)
    ir.save(model, target, external_data=f"{target.stem}.data", alignment=4096)


def randomize(model: ir.Model, seed: int = 0) -> int:
    """Replace `model`'s float parameters in place, as lazy tensors; return how many there were."""
    graph = model.graph
    shapes = _shapes(model)
    replaced: dict[str, ir.Value] = {}
    for node in graph:
        for index, value in enumerate(node.inputs):
            parameter = _parameter(value)
            if value is None or parameter is None or parameter.name in replaced:
                continue
            role = _role(node, index, shapes[str(value.name)])
            if role is not None:
                name = str(parameter.name)
                replaced[name] = parameter
                parameter.const_value = _lazy(name, shapes[name], role, seed)
    for name, parameter in replaced.items():
        _make_initializer(graph, parameter, shapes[name])
    for value in [value for value in graph.inputs if value.name in graph.initializers]:
        graph.inputs.remove(value)
    passes.RemoveUnusedNodesPass()(model)
    model.ir_version = max(model.ir_version, 8)
    return len(replaced)


def _parameter(value: ir.Value | None) -> ir.Value | None:
    """The float initializer or ConstantOfShape that `value` comes from, or None."""
    while value is not None:
        node = value.producer()
        if node is None:
            is_float = value.const_value is not None and value.dtype == ir.DataType.FLOAT
            return value if is_float and value.is_initializer() else None
        if node.op_type == "ConstantOfShape":
            fill = node.attributes.get("value")
            is_float = fill is None or fill.as_tensor().dtype == ir.DataType.FLOAT
            return value if is_float else None
        value = node.inputs[0] if node.op_type in MOVES else None
    return None


def _shapes(model: ir.Model) -> dict[str, tuple[int, ...]]:
    """The static shapes of `model`'s values, by name; those of ConstantOfShape among them."""
    inferred = passes.ShapeInferencePass()(model.clone()).model.graph
    values = [*inferred.initializers.values(), *(v for node in inferred for v in node.outputs)]
    return {
        str(value.name): tuple(int(size) for size in value.shape.numpy())
        for value in values
        if value.shape is not None and value.shape.is_static()
    }


def _role(node: ir.Node, index: int, shape: tuple[int, ...]) -> Role | None:
    match node.op_type, index:
        case (("Conv" | "ConvTranspose" | "Gemm" | "MatMul"), 1):
            gain = RECTIFIED_GAIN if _rectified(node.inputs[0]) else 1.0
            return Role("filter", shape, _fan_in_axes(node, len(shape)), gain)
        case "BatchNormalization", 4:
            return Role("variance", shape)
        case ("BatchNormalization", 1) | ("Mul", _):
            residual = any(user.op_type == "Sum" for user in node.outputs[0].consumers())
            return Role("residual scale" if residual else "scale", shape)
        case ("BatchNormalization", 2 | 3) | ("Conv" | "ConvTranspose" | "Gemm", 2) | ("Add", _):
            return Role("bias", shape)
    return None


def _fan_in_axes(node: ir.Node, rank: int) -> tuple[int, ...]:
    match node.op_type:
        case "Conv":
            return tuple(range(1, rank))
        case "ConvTranspose":
            return (0, *range(2, rank))
        case "Gemm":
            return (1,) if node.attributes.get_int("transB", 0) else (0,)
    return (rank - 2,)


def _rectified(value: ir.Value | None) -> bool:
    """There is a ReLU between `value` and the filter or Sum that it comes from."""
    while value is not None and (node := value.producer()) is not None:
        if node.op_type == "Relu":
            return True
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "MatMul", "Sum"):
            return False
        value = node.inputs[0]
    return False


def _lazy(name: str, shape: tuple[int, ...], role: Role, seed: int) -> ir.LazyTensor:
    def make() -> ir.TensorProtocol:
        return ir.tensor(_weights(name, role, seed).reshape(shape), name=name)

    return ir.LazyTensor(make, ir.DataType.FLOAT, ir.Shape(shape), name=name)


def _weights(name: str, role: Role, seed: int) -> seeded.Floats:
    if role.kind == "filter":
        return _filter(name, role, seed)
    centre, spread = AROUND[role.kind]
    return seeded.around(name, seed, role.shape, centre, spread)


def _filter(name: str, role: Role, seed: int) -> seeded.Floats:
    numbers = seeded.integers(name, seed, role.shape)
    fan_in = math.prod(role.shape[axis] for axis in role.fan_in_axes)
    weights = np.empty(role.shape, np.float32)
    if fan_in >= 4:
        mean = numbers.sum(axis=role.fan_in_axes, keepdims=True, dtype=np.int64) // fan_in
        np.subtract(numbers, mean.astype(np.int32), out=weights, casting="unsafe")
    else:
        weights[...] = numbers
    weights *= seeded.scale(role.gain / math.sqrt(fan_in))
    return weights


def _make_initializer(graph: ir.Graph, parameter: ir.Value, shape: tuple[int, ...]) -> None:
    """Let the parameter be an initializer where a node made it."""
    node = parameter.producer()
    if node is None:
        return
    fresh = ir.Value(
        name=parameter.name,
        shape=ir.Shape(shape),
        type=ir.TensorType(ir.DataType.FLOAT),
        const_value=parameter.const_value,
    )
    parameter.replace_all_uses_with(fresh)
    graph.remove(node, safe=True)
    graph.register_initializer(fresh)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("source", type=Path, help="model whose weights are replaced")
    parser.add_argument("target", type=Path, help="model written; its data goes beside it")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    convert(arguments.source, arguments.target, arguments.seed)


if __name__ == "__main__":
    main()
