"""Small models written as ONNX's own text, as onnx_ir models, and their outputs on ONNX Runtime."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort


def proto(body: str, *, opsets: str = '"" : 21', ir_version: int = 10) -> onnx.ModelProto:
    """A model as protobuf has it: its graph, and functions after it if there are any."""
    head = f"<ir_version: {ir_version}, opset_import: [{opsets}]>"
    found: onnx.ModelProto = onnx.parser.parse_model(f"{head} {body}")
    return found


def model(body: str, *, opsets: str = '"" : 21', infer: bool = True) -> ir.Model:
    """A model of one graph, `g (inputs) => (outputs) <initializers> { nodes }`, with its types.

    A node's name is in brackets before it. `infer`: with shape inference, as `load` does.
    """
    from epctx.graph.serde import types  # the zoo's exporters have no epctx beside them

    text = proto(body, opsets=opsets)
    return types.from_proto(onnx.shape_inference.infer_shapes(text) if infer else text)


def session(source: ir.Model | onnx.ModelProto) -> ort.InferenceSession:
    """A session on ONNX Runtime's CPU EP that changes nothing in the model."""
    from epctx.graph.serde import types

    data = types.to_proto(source) if isinstance(source, ir.Model) else source
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        data.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def run(source: ir.Model, feeds: Mapping[str, np.ndarray]) -> Sequence[np.ndarray]:
    """The model's outputs."""
    found: Sequence[np.ndarray] = session(source).run(None, dict(feeds))
    return found


def names(nodes: Sequence[ir.Node]) -> list[str | None]:
    """The nodes' names."""
    return [node.name for node in nodes]


def reorder(source: ir.Model, seed: int) -> None:
    """Put the main graph's nodes in a random topological order."""
    from epctx.graph.dataflow import Dataflow

    flow = Dataflow(source)
    draw = random.Random(seed)
    waiting = {node: set(needs) for node, needs in enumerate(flow.predecessors)}
    order = []
    while waiting:
        node = draw.choice([node for node, needs in waiting.items() if not needs & waiting.keys()])
        del waiting[node]
        order.append(flow.nodes[node])
    source.graph.extend(order)  # moves them
