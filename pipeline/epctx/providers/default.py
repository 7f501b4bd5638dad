"""The default EP: which nodes ONNX Runtime's CPU EP can run.

epctx asks ONNX Runtime itself, with a model of one node. ONNX Runtime's kernel table
(`get_all_opkernel_def`) does not list ops that run by expanding their function body, or by casting
float16 to float and back around a kernel. One question costs 0.4 ms (onnxruntime 1.31.1; the model
has no weights). Nodes that differ only in name and shape share one question. Of ONNX's 1,884 node
tests (onnx 1.23.2), onnxruntime 1.31.1 loads 1,515 and onnxruntime 1.32.0 loads 1,765; the answer
is right for each of these.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from epctx.error_codes import Code
from epctx.errors import ModelError
from epctx.graph.epcontext import is_epcontext

if TYPE_CHECKING:
    import onnx_ir as ir

    from epctx.providers.question import Shapes

_DOUBTS = ("ShapeInferenceError", "type inference failed")
"""Words in ONNX Runtime's errors about information that only the whole model may have."""


_ANSWERS: dict[Hashable, dict[Hashable, str | None]] = {}
"""ONNX Runtime's answers in this process, by opset imports and signature of the node."""


class CpuKernels:
    """Asks ONNX Runtime's CPU EP what it can run of one model.

    Args:
        model: the model whose nodes are asked about; it is not changed.
    """

    def __init__(self, model: ir.Model) -> None:
        self._model = model
        imports = tuple(sorted(model.opset_imports.items()))
        self._answers = {} if model.functions else _ANSWERS.setdefault(imports, {})

    def refusal(self, node: ir.Node) -> str | None:
        """Return why the CPU EP cannot run a node, its subgraphs included; None if it can.

        Also None if the node's input types are not known: then only ONNX Runtime can tell, from the
        whole model.
        """
        if (node.domain, node.op_type) == ("", "Constant"):
            return None  # ONNX Runtime makes it an initializer: it needs no kernel
        used = _used(node)
        if any(value.type is None for value in used):
            return None
        signature = _signature(node)
        if signature is None:
            return self._ask(node, used)
        if signature not in self._answers:
            self._answers[signature] = self._ask(node, used)
        answer = self._answers[signature]
        if answer is not None and _expands_by_shape(node):
            return self._ask(node, used, shapes="whole")
        return answer

    def require(self, nodes: Sequence[ir.Node], *, where: str) -> None:
        """Raise unless the CPU EP can run all of these nodes.

        Raises:
            ModelError: the CPU EP cannot run a node. Names the first one's op, domain, opset
                version and node.
        """
        refused = [(node, why) for node in nodes if (why := self.refusal(node)) is not None]
        if not refused:
            return
        node, why = refused[0]
        others = {other.op_type for other, _ in refused[1:]}
        more = (
            f" (and {len(refused) - 1} more nodes: {', '.join(sorted(others))})" if others else ""
        )
        raise ModelError(
            f"no execution provider takes {self.describe(node)}{more}",
            where=f'{where}, node "{node.name}"',
            why=why,
            remedy=_remedy(node),
            code=Code.NO_KERNEL,
        )

    def describe(self, node: ir.Node) -> str:
        """Describe a node's operator, as in `TopK (domain ai.onnx, opset 21)`."""
        version = node.version or self._model.opset_imports.get(node.domain)
        return f"{node.op_type} (domain {node.domain or 'ai.onnx'}, opset {version or 'unknown'})"

    def _ask(
        self, node: ir.Node, used: Sequence[ir.Value], *, shapes: Shapes = "ranks"
    ) -> str | None:
        text = _try(self._model, node, used, shapes)
        if text is not None and "ShapeInferenceError" in text:
            # From a rank alone, shape inference can assume too much: for Resize, that `sizes` is
            # known.
            text = _try(self._model, node, used, "none")
        if text is None or any(doubt in text for doubt in _DOUBTS):
            return None
        if "Exception during initialization" in text and any(v.is_initializer() for v in used):
            return None  # the kernel exists; it may want to see the constant that is an input here
        return _explain(text, node)


@cache
def registered(domain: str, op_type: str) -> bool:
    """Tell whether onnxruntime or onnx knows an operator of this domain and op type."""
    import onnx

    if onnx.defs.has(op_type, domain):
        return True
    from onnxruntime.capi import onnxruntime_pybind11_state as native

    return any(
        schema.name == op_type and schema.domain == domain
        for schema in native.get_all_operator_schema()
    )


def _expands_by_shape(node: ir.Node) -> bool:
    """Tell whether onnx writes the operator as a function of the shapes (CausalConvWithState)."""
    import onnx

    if not onnx.defs.has(node.op_type, node.domain):
        return False
    schema: Any = onnx.defs.get_schema(node.op_type, node.domain)
    return bool(schema.has_context_dependent_function)


def _try(model: ir.Model, node: ir.Node, used: Sequence[ir.Value], shapes: Shapes) -> str | None:
    """Return ONNX Runtime's error for a model of the one node; None if the model loads."""
    from epctx.graph.serde import types
    from epctx.graph.soundness import session_error
    from epctx.providers import question

    probe = question.make(model, node, used, shapes=shapes)
    return session_error(types.to_proto(probe).SerializeToString())


def _used(node: ir.Node) -> list[ir.Value]:
    """Return the values that a main-graph node uses, including those that its subgraphs use, each
    once.
    """
    from epctx.graph.dataflow import captured

    inner = (value for value in captured(node) if value.graph is node.graph)
    outer = (value for value in node.inputs if value is not None)
    return list(dict.fromkeys((*outer, *inner)))


def _signature(node: ir.Node) -> Hashable | None:
    """Return the memo key of the answer; None for nodes with subgraphs, which are never
    memoized.
    """
    import onnx_ir as ir

    attributes: list[Hashable] = []
    for name, attribute in sorted(node.attributes.items()):
        if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return None
        if attribute.type in (ir.AttributeType.TENSOR, ir.AttributeType.SPARSE_TENSOR):
            attributes.append((name, attribute.value.dtype, tuple(attribute.value.shape)))
        else:
            attributes.append((name, str(attribute.value)))
    inputs = tuple(
        None if value is None else (str(value.type), _rank(value)) for value in node.inputs
    )
    outputs = tuple(value.name and str(value.type) for value in node.outputs)
    return (node.domain, node.op_type, node.overload, tuple(attributes), inputs, outputs)


def _rank(value: ir.Value) -> int | None:
    return None if value.shape is None else value.shape.rank()


def _explain(text: str, node: ir.Node) -> str:
    """Shorten ONNX Runtime's refusal to one line, without error code and source line."""
    from epctx.graph import soundness
    from epctx.graph.partition.borders import type_name

    kinds = [value.type for value in node.inputs if value is not None]
    types = ", ".join(type_name(kind) for kind in kinds if kind is not None)
    if "Could not find an implementation" in text:
        return f"ONNX Runtime's CPU EP has no kernel for it with inputs of type {types or 'none'}"
    if soundness.unknown_op(text) is not None:
        return soundness.no_kernel(node.op_type, node.domain)
    limit = re.search(r"Current official support for domain (\S+) is till opset (\d+)", text)
    if limit:
        return f"ONNX Runtime knows domain {limit[1]} up to opset {limit[2]}"
    return f"ONNX Runtime: {soundness.words(text)}"


def _remedy(node: ir.Node) -> str:

    if is_epcontext(node):
        return "build from the source model of this EPContext model"
    return (
        "let an execution provider of the group take it (is it excluded?), or export the model "
        "with an operator, an opset and types that ONNX Runtime supports; `custom_ops` of a model "
        "names a library of further operators"
    )
