"""Models in pieces, made by hand: each piece compiled apart, their nodes joined in one file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

import epctx
from epctx.graph.epcontext import PIECES, Cuts
from epctx.runtime.split import SegmentBuilder
from epctx.verification.numbers import pieces

REFERENCE = "ReferenceExecutionProvider"
MLP = """
g (float[2,8] x, float[8] bias) => (float[2,8] early, float[2,8] z)
  <float[8,8] w1, float[8,8] w2, float[8,8] w3> {
  mask = Sigmoid(bias)
  h1 = MatMul(x, w1)
  early = Relu(h1)
  a1 = Tanh(h1)
  m1 = Mul(a1, mask)
  h2 = MatMul(m1, w2)
  a2 = Tanh(h2)
  m2 = Add(a2, mask)
  h3 = MatMul(m2, w3)
  z = Add(h3, a1)
}
"""
"""Three layers. A mask is needed by all, `a1` by the first and the last one."""
CUTS: Cuts = (("m1", "a1"), ("m2", "a1"))


def source(path: Path, body: str = MLP) -> Path:
    """Save a model of ONNX's text; what it lists beside its outputs is a random weight."""
    head = '<ir_version: 10, opset_import: ["" : 21, "local" : 1]>'
    made: onnx.ModelProto = onnx.parser.parse_model(f"{head} {body}")
    rng = np.random.default_rng(0)
    for value in made.graph.value_info:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        values = rng.standard_normal(shape).astype(np.float32)
        made.graph.initializer.append(numpy_helper.from_array(values, value.name))
    del made.graph.value_info[:]
    onnx.save(made, path)
    return path


def assemble(
    folder: Path,
    name: str,
    model: Path,
    cuts: Cuts = CUTS,
    *,
    wrong: Mapping[int, str] | None = None,
    providers: Sequence[Any] = (REFERENCE,),
) -> Path:
    """Compile the pieces of a model into a folder, and write `<name>_ctx.onnx` of all of them.

    Args:
        wrong: the initializer that is doubled before a piece is compiled, by the piece's number.
    """
    whole = onnx.shape_inference.infer_shapes(onnx.load(model), data_prop=True)
    known = {value.name for value in (*whole.graph.input, *whole.graph.output)}
    known |= {name for cut in cuts for name in cut}
    joined = onnx.ModelProto()
    for number, step in enumerate(pieces.split(whole.graph, cuts), start=1):
        piece = SegmentBuilder(whole).build(step)
        for tensor in piece.graph.initializer:
            if tensor.name == (wrong or {}).get(number):
                values = 2 * numpy_helper.to_array(tensor)
                tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
        output = folder / f"{name}_{number}_ctx.onnx"
        epctx.compile_model(
            piece.SerializeToString(),
            output=output,
            providers=list(providers),
            session_options={"ep.context_node_name_prefix": f"p{number}_"},
        )
        _add(joined, onnx.load(output), f"p{number}/", known)
        output.unlink()
    joined.graph.name = "g"
    joined.graph.input.extend(whole.graph.input)
    joined.graph.output.extend(whole.graph.output)
    joined.producer_name = "epctx"
    joined.metadata_props.add(key=PIECES, value=json.dumps(cuts))
    path = folder / f"{name}_ctx.onnx"
    onnx.save(joined, path)
    return path


def _add(joined: onnx.ModelProto, piece: onnx.ModelProto, prefix: str, known: set[str]) -> None:
    """Add the nodes of a piece; values that are its own alone get a prefix."""

    def named(names: Any) -> None:
        names[:] = [each if each in known or not each else prefix + each for each in names]

    joined.ir_version = max(joined.ir_version, piece.ir_version)
    opsets = {each.domain for each in joined.opset_import}
    joined.opset_import.extend(e for e in piece.opset_import if e.domain not in opsets)
    for node in piece.graph.node:
        named(node.input)
        named(node.output)
    outside = {value.name for value in piece.graph.input}
    for value in (*piece.graph.value_info, *piece.graph.output, *piece.graph.initializer):
        if value.name not in known:
            value.name = prefix + value.name
    joined.graph.node.extend(piece.graph.node)
    joined.graph.initializer.extend(piece.graph.initializer)
    types = {value.name for value in joined.graph.value_info} | outside
    joined.graph.value_info.extend(
        value for value in (*piece.graph.value_info, *piece.graph.output) if value.name not in types
    )
