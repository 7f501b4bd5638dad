"""Models that ONNX Runtime runs, though ONNX forbids them or onnx's own tools trip over them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper

from epctx.manifest import ModelSource, OptimizeSettings, PartitionSettings
from epctx.providers.base import SessionGroupSpec
from epctx.runtime import InferenceSession
from epctx.stages import compile, dump, load, optimize, partition
from tests.kit import onnx_text
from tests.kit.building import Array, reference

Make = Callable[[], onnx.ModelProto]
FORBIDDEN: dict[str, Make] = {}
"""Those that ONNX forbids."""

_parsed = partial(onnx_text.proto, opsets='"" : 17', ir_version=8)
_IN, _OUT = "float[2, 4] x", "float[2, 4] y"


def weight(name: str, *values: float) -> onnx.TensorProto:
    """A float tensor of one dimension."""
    return numpy_helper.from_array(np.array(values, np.float32), name)


def _forbidden(make: Make) -> Make:
    FORBIDDEN[make.__name__.replace("_", " ")] = make
    return make


def _text(
    body: str, *weights: onnx.TensorProto, opsets: str = '"" : 17', ins: str = _IN
) -> onnx.ModelProto:
    model = _parsed(f"g ({ins}) => ({_OUT}) {{ {body} }}", opsets=opsets)
    model.graph.initializer.extend(weights)
    return model


@_forbidden
def layer_normalization_before_opset_17() -> onnx.ModelProto:
    body = "t = LayerNormalization <axis = -1> (x, s) y = Relu(t)"
    return _text(body, weight("s", 1, 2, 3, 4), opsets='"" : 12')


@_forbidden
def simplified_layer_normalization() -> onnx.ModelProto:
    body = "t = SimplifiedLayerNormalization <axis = -1, epsilon = 0.001> (x, s) y = Relu(t)"
    return _text(body, weight("s", 1, 2, 3, 4), opsets='"" : 21')


@_forbidden
def no_import_of_com_microsoft() -> onnx.ModelProto:
    return _text("y = com.microsoft.Gelu(x)")


@_forbidden
def no_import_of_ai_onnx_ml() -> onnx.ModelProto:
    return _text('y = ai.onnx.ml.Normalizer <norm = "L2"> (x)')


@_forbidden
def no_import_of_ai_onnx() -> onnx.ModelProto:
    return _text("y = Relu(x)", opsets='"com.microsoft" : 1')


@_forbidden
def no_import_of_what_a_body_uses() -> onnx.ModelProto:
    branch = "{} = b () => (float[2, 4] {}) {{ {} = com.microsoft.Gelu(x) }}"
    both = f"{branch.format('then_branch', 'p', 'p')}, {branch.format('else_branch', 'q', 'q')}"
    return _text(f"c = Constant <value = bool {{1}}> () y = If(c) <{both}>")


@_forbidden
def an_output_without_a_type() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    model.graph.output[0].ClearField("type")
    return model


@_forbidden
def an_output_without_a_type_of_an_operator_of_onnx_runtime() -> onnx.ModelProto:
    body = "t = Relu(x) y = com.microsoft.FastGelu(t)"
    model = _text(body, opsets='"" : 17, "com.microsoft" : 1')
    model.graph.output[0].ClearField("type")
    return model


@_forbidden
def two_opsets_of_one_domain() -> onnx.ModelProto:
    model = _text("t = ReduceMean <axes = [1]> (x) y = Mul(x, t)")
    model.opset_import.insert(0, helper.make_opsetid("", 18))
    return model


@_forbidden
def two_opsets_of_a_domain_of_two_names() -> onnx.ModelProto:
    model = _text("t = ReduceMean <axes = [1]> (x) y = ai.onnx.Mul(x, t)")
    model.opset_import.insert(0, helper.make_opsetid("ai.onnx", 18))
    return model


@_forbidden
def nodes_without_inputs_and_outputs() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    branch = helper.make_graph([helper.make_node("Relu", ["x"], ["q"])], "b", [], [])
    model.graph.node.append(
        helper.make_node("If", [], [], then_branch=branch, else_branch=branch, name="if")
    )
    model.graph.node.append(helper.make_node("NobodyHasIt", [], []))
    return model


@_forbidden
def constants_of_one_name() -> onnx.ModelProto:
    one, two = (f"[k] c = Constant <value = float[1] {{{n}}}> ()" for n in (1, 2))
    return _text(f"{one} t = Add(x, c) {two} y = Mul(t, c)")


@_forbidden
def a_constant_and_an_initializer_of_one_name() -> onnx.ModelProto:
    return _text("c = Constant <value = float[1] {3}> () y = Mul(x, c)", weight("c", 5))


@_forbidden
def initializers_of_one_name() -> onnx.ModelProto:
    return _text("y = Mul(x, c)", weight("c", 5), weight("c", 7))


@_forbidden
def large_initializers_of_one_name() -> onnx.ModelProto:
    one = numpy_helper.from_array(np.full((512, 4), 3, np.float32), "c")
    bounds = [numpy_helper.from_array(np.array([n], np.int64), f"n{n}") for n in (0, 2)]
    return _text("t = Slice(c, n0, n2) y = Mul(x, t)", one, one, *bounds)


@_forbidden
def a_sparse_constant_that_is_not_sorted() -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["c"], sparse_value=sparse("", [7, 8], [3, 1]))
    model = _text("y = Mul(x, c)")
    model.graph.node.insert(0, constant)
    return model


@_forbidden
def a_sparse_constant_before_opset_11() -> onnx.ModelProto:
    constant = helper.make_node("Constant", [], ["c"], sparse_value=sparse("", [7], [3]))
    model = _text("y = Mul(x, c)", opsets='"" : 9')
    model.graph.node.insert(0, constant)
    return model


@_forbidden
def metadata_of_one_key() -> onnx.ModelProto:
    model = _text("y = Relu(x)")
    for value in ("one", "two"):
        model.metadata_props.add(key="k", value=value)
    return model


def sparse(name: str, values: Sequence[float], indices: Sequence[int]) -> onnx.SparseTensorProto:
    """A sparse tensor of four elements."""
    found = TensorProto(name="i", data_type=TensorProto.INT64, dims=[len(indices)])
    found.int64_data.extend(indices)
    return onnx.SparseTensorProto(values=weight(name, *values), indices=found, dims=[4])


def stock(path: Path, feeds: Mapping[str, Array]) -> Sequence[Array]:
    """What ONNX Runtime's kernels compute of a model, unoptimized."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found: Sequence[Array] = session.run(None, dict(feeds))
    return found


def through(
    path: Path, folder: Path, feeds: Mapping[str, Array], level: str, **fixed: object
) -> Sequence[Array]:
    """What epctx makes of a model on the reference EP, all stages, loaded from its files and run.

    Args:
        fixed: `dimensions` or `shapes` of the source.
    """
    scratch, out = folder / "scratch", folder / "out"
    for each in (scratch, out):
        each.mkdir()
    source = ModelSource(name="model", path=path, **fixed)  # type: ignore[arg-type]
    settings = OptimizeSettings(level=level)  # type: ignore[arg-type]
    optimized = optimize.run(load.run(source), settings, scratch)
    parted = partition.run(optimized, [reference()], PartitionSettings())
    spec = SessionGroupSpec(
        models=("model",), embed_mode=0, node_name_prefix="", session_options={}, folder=scratch
    )
    taken = bool(parted.partitions)
    with compile.run([parted], [reference()] if taken else [], spec) as compiled:
        dump.run(compiled, out)
    name = "ReferenceExecutionProvider" if taken else "CPUExecutionProvider"
    with InferenceSession(out / "model_ctx.onnx", providers=[name]) as session:
        return session.run(None, dict(feeds))
