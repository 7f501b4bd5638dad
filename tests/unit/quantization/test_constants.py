from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from epctx.quantization import constants


def model(size: int = 4) -> onnx.ModelProto:
    """y = (x * w) * w + w, and a body that takes w too."""
    value = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size]) for name in "xy"]
    nodes = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node("Mul", ["a", "w"], ["b"]),
        helper.make_node("Add", ["b", "w"], ["y"]),
    ]
    weight = numpy_helper.from_array(np.ones(size, np.float32), "w")
    taken = numpy_helper.from_array(np.ones(1, np.float32), "w/1")
    graph = helper.make_graph(nodes, "g", value[:1], value[1:], [weight, taken])
    return helper.make_model(graph)


def test_each_node_has_a_constant_of_its_own() -> None:
    made = model()
    assert constants.separate(made)
    names = [node.input[1] for node in made.graph.node]
    assert names == ["w", "w/2", "w/3"], "another tensor is called w/1"
    values = {t.name: numpy_helper.to_array(t) for t in made.graph.initializer}
    assert all((values[name] == 1).all() and values[name].shape == (4,) for name in names)
    onnx.checker.check_model(made)


def test_what_is_alone_or_large_stays() -> None:
    made = model()
    assert constants.separate(made)
    assert not constants.separate(made), "nothing is shared any more"
    large = model(1 << 17)
    assert not constants.separate(large)
