"""100,000 nodes partitioned, against 10,000 (design section 12): near linear."""

from __future__ import annotations

import gc
import random
import time

import onnx_ir as ir
import pytest

from tests.bench.measuring import PARTITION, ratio
from tests.kit.fake_providers import Taker, partitioned

WIDTH = 50
UNARY = ("Relu", "Neg", "Abs", "Exp")
BINARY = ("Add", "Mul", "Sub")


def layered(count: int, *, seed: int = 0) -> ir.Model:
    """Layers of WIDTH nodes, each of one or two random values of the layer before it."""
    generator = random.Random(seed)
    kind = ir.TensorType(ir.DataType.FLOAT)
    inputs = [ir.Value(name=f"x{i}", type=kind, shape=ir.Shape([4])) for i in range(WIDTH)]
    before = inputs
    nodes: list[ir.Node] = []
    while len(nodes) < count:
        layer = []
        for _ in range(WIDTH):
            place = len(nodes)
            out = ir.Value(name=f"v{place}", type=kind, shape=ir.Shape([4]))
            both = generator.sample(before, 2)
            if generator.random() < 0.5:
                node = ir.node(generator.choice(UNARY), both[:1], outputs=[out], name=f"n{place}")
            else:
                node = ir.node(generator.choice(BINARY), both, outputs=[out], name=f"n{place}")
            nodes.append(node)
            layer.append(out)
        before = layer
    graph = ir.Graph(inputs, before, nodes=nodes, opset_imports={"": 21}, name="layered")
    return ir.Model(graph, ir_version=10)


def seconds(model: ir.Model) -> float:
    """The whole stage's processor time."""
    generator = random.Random(1)
    unsupported = {node for node in model.graph if generator.random() < 0.3}
    gc.collect()
    start = time.process_time()
    result = partitioned(
        model,
        Taker(lambda node: node not in unsupported, label="one"),
        Taker(lambda node: node.op_type == "Relu", label="two"),
    )
    ended = time.process_time()
    assert len(result.partitions) > 1
    return ended - start


@pytest.mark.bench
def test_ten_times_the_nodes_take_about_ten_times_as_long() -> None:
    small, large = layered(10_000), layered(100_000)
    ratio(PARTITION, lambda: seconds(large), lambda: seconds(small), runs=5)
