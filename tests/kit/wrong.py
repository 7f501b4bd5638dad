"""Models of some hundred nodes of which an EP computes one wrongly, for `epctx bisect`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import yaml
from onnx import TensorProto, helper, numpy_helper, shape_inference

QNN = "QNNExecutionProvider"


@dataclass
class Net:
    """A graph under construction; `last` is the value that goes on."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)
    last: str = "x"

    def __call__(self, op_type: str, out: str, *more: str, **attributes: Any) -> None:
        """A node of `last` and of `more`, called as what it makes."""
        given = [self.last, *more]
        self.nodes.append(helper.make_node(op_type, given, [out], name=out, **attributes))
        self.last = out

    def weight(self, name: str, value: npt.ArrayLike, kind: npt.DTypeLike = np.float32) -> str:
        """A weight, by its name."""
        self.weights.append(numpy_helper.from_array(np.asarray(value, kind), name))
        return name


def write(
    folder: Path,
    change: Callable[[Net], None],
    *,
    provider: str = QNN,
    options: dict[str, str] | None = None,
    layers: int = 100,
    width: int = 16,
    rows: int = 4,
    last: tuple[int, int] | None = None,
    **group: Any,
) -> Path:
    """A chain of layers, each a MatMul, a Tanh and an Add, with `change` after three fifths.

    What a layer gives is what it is given and a little: no later layer hides a fault.

    Args:
        last: rows and width after the change; None: as before.

    Returns:
        The manifest, with the model `net` in the group `g`.
    """
    rng, net = np.random.default_rng(0), Net()
    shape = (1, 1, rows, width)
    after = shape if last is None else (1, 1, *last)
    for layer in range(layers):
        if layer == layers * 3 // 5:
            change(net)
        size = (shape if layer < layers * 3 // 5 else after)[-1]
        matrix = 0.2 * rng.standard_normal((size, size)) / size**0.5
        before = net.last
        net("MatMul", f"product{layer}", net.weight(f"w{layer}", matrix))
        net("Tanh", f"small{layer}")
        net("Add", f"sum{layer}", before)
    net("Identity", "y")
    graph = helper.make_graph(
        net.nodes,
        "wrong",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, after)],
        net.weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.save(shape_inference.infer_shapes(model), folder / "net.onnx")
    given = {"soc_model": "60"} if options is None else options
    manifest = folder / "epctx.yaml"
    document = {
        "schema_version": 1,
        "name": "wrong",
        "models": {"net": {"path": "net.onnx"}},
        "execution_providers": {"ep": {"provider": provider, "options": given}},
        "model_groups": {"g": {"models": ["net"], "execution_providers": ["ep"], **group}},
    }
    manifest.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return manifest


def nothing(net: Net) -> None:
    """A model without a fault."""


def overflow(net: Net) -> None:
    """Numbers of a million, between a MatMul and a Mul."""
    net("MatMul", "huge", net.weight("large", 3e4 * np.eye(16)))
    net("Mul", "huger", net.weight("ten", [10.0]))
    net("Mul", "back", net.weight("little", [1 / 3e5]))


def underflow(net: Net) -> None:
    """Numbers of a hundred-millionth, between two Muls."""
    net("Mul", "tiny", net.weight("tenth", [1e-4]))
    net("Mul", "tinier", net.weight("hundredth", [1e-4]))
    net("Mul", "back", net.weight("much", [1e4]))
    net("Mul", "again", net.weight("more", [1e4]))


def hard(net: Net) -> None:
    """An operator that QNN does not compile in float32 without `soc_model`."""
    net("HardSigmoid", "hard")


def uneven(net: Net) -> None:
    """One channel a thousand times as large as the others: of eight bits these have none."""
    scale = np.where(np.arange(16) == 0, 1000.0, 1.0)
    net("Mul", "scaled", net.weight("scale", scale))
    net("Mul", "unscaled", net.weight("unscale", 1 / scale))


def pool(net: Net) -> None:
    """An average over an image as large as QNN's x86 simulator computes wrongly."""
    net("AveragePool", "pooled", kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
