"""A model cut into kernels and segments: every step has what it needs, and nothing is lost."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime as ort
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from epctx.inference.split import KernelStep, SegmentBuilder, cut
from epctx.inference.values import NodeArg
from tests.kit.strategies import dags, masks


def model_of(predecessors: list[list[int]]) -> onnx.ModelProto:
    """One Sum node for each node of the graph; all that nothing uses is output."""
    used = {need for needs in predecessors for need in needs}
    nodes = [
        helper.make_node("Sum", ["x", *(f"v{n}" for n in needs)], [f"v{i}"], name=f"n{i}")
        for i, needs in enumerate(predecessors)
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [info("x", TensorProto.FLOAT, [1])],
        [info(f"v{i}", TensorProto.FLOAT, [1]) for i in range(len(nodes)) if i not in used],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return onnx.shape_inference.infer_shapes(model)


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    names = [arg.name for arg in session(model).get_outputs()]
    return dict(zip(names, session(model).run(names, feeds), strict=True))


def session(model: onnx.ModelProto) -> ort.InferenceSession:
    return ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_steps_compute_what_the_model_does(data: st.DataObject) -> None:
    predecessors = data.draw(dags(max_nodes=10).filter(bool))
    plain = data.draw(masks(len(predecessors), chance=60))
    kernels = {i for i, own in enumerate(plain) if not own}
    model = model_of(predecessors)
    known = [v for v in model.graph.value_info if int(v.name[1:]) in kernels]
    del model.graph.value_info[:]  # a model need not tell more than its kernels' outputs
    model.graph.value_info.extend(known)
    builder = SegmentBuilder(model)
    steps = cut(model.graph, kernels)
    seen: list[int] = []
    values = {"x": np.ones(1, np.float32)}
    for step in steps:
        if isinstance(step, KernelStep):
            node = model.graph.node[step.node]
            values[node.output[0]] = np.sum([values[n] for n in node.input], axis=0)
            seen.append(step.node)
        else:
            part = builder.build(step)
            made = run(part, {name: values[name] for name in step.inputs})
            assert list(made) == list(step.outputs)
            builder.learn(
                NodeArg.of_session(arg).value_info() for arg in session(part).get_outputs()
            )
            values |= made
            seen += step.nodes
    assert sorted(seen) == list(range(len(predecessors)))
    assert {step.node for step in steps if isinstance(step, KernelStep)} == kernels
    for name, value in run(model, {"x": np.ones(1, np.float32)}).items():
        assert values[name] == value


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_without_kernels_a_model_is_one_segment(data: st.DataObject) -> None:
    predecessors = data.draw(dags(max_nodes=10).filter(bool))
    (step,) = cut(model_of(predecessors).graph, ())
    assert not isinstance(step, KernelStep) and len(step.nodes) == len(predecessors)
