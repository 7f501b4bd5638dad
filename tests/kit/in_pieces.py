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
from epctx.graph.epcontext import COMPATIBILITY, PIECES, Cuts
from epctx.inference.split import SegmentBuilder
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
    models: Mapping[str, Path],
    cuts: Cuts = CUTS,
    *,
    wrong: Mapping[int, str] | None = None,
    providers: Sequence[Any] = (REFERENCE,),
) -> None:
    """Compile the pieces of models into a folder, and write `<name>_ctx.onnx` of each model.

    Args:
        models: sources by name; piece by piece, several share a context.
        wrong: the initializer of the last model that is doubled before a piece is compiled, by the
            piece's number.
    """
    sources = {n: onnx.shape_inference.infer_shapes(onnx.load(p)) for n, p in models.items()}
    joined = {name: onnx.ModelProto() for name in models}
    *_, last = models
    for place in range(len(cuts) + 1):
        made: dict[str, Path] = {}
        for name, whole in sources.items():
            piece = SegmentBuilder(whole).build(pieces.split(whole.graph, cuts)[place])
            for tensor in piece.graph.initializer:
                if name == last and tensor.name == (wrong or {}).get(place + 1):
                    values = 2 * numpy_helper.to_array(tensor)
                    tensor.CopyFrom(numpy_helper.from_array(values, tensor.name))
            options: dict[str, str] = {}
            if len(models) > 1:
                options["ep.share_ep_contexts"] = "1"
                options |= {"ep.stop_share_ep_contexts": "1"} if name == last else {}
            made[name] = epctx.compile_model(
                piece.SerializeToString(),
                output=folder / f"{name}_{place + 1}_ctx.onnx",
                providers=list(providers),
                session_options=options,
            )
        for name, path in made.items():
            known = {v.name for v in (*sources[name].graph.input, *sources[name].graph.output)}
            known.update(value for cut in cuts for value in cut)
            _add(joined[name], onnx.load(path), f"p{place}/", known)
            path.unlink()
    for name, model in joined.items():
        model.graph.name = "g"
        model.graph.input.extend(sources[name].graph.input)
        model.graph.output.extend(sources[name].graph.output)
        model.metadata_props.add(key=PIECES, value=json.dumps(cuts))
        onnx.save(model, folder / f"{name}_ctx.onnx")


def _add(joined: onnx.ModelProto, piece: onnx.ModelProto, prefix: str, known: set[str]) -> None:
    """Add the nodes of a piece; values that are its own alone get a prefix."""

    def named(names: Any) -> None:
        names[:] = [each if each in known or not each else prefix + each for each in names]

    joined.ir_version = max(joined.ir_version, piece.ir_version)
    opsets = {each.domain for each in joined.opset_import}
    joined.opset_import.extend(e for e in piece.opset_import if e.domain not in opsets)
    for entry in piece.metadata_props:
        if entry.key.startswith(COMPATIBILITY) and entry not in joined.metadata_props:
            joined.metadata_props.append(entry)
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
