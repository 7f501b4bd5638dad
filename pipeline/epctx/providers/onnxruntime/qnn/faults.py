"""Nodes that QNN computes wrongly, or not at all (onnxruntime-qnn 2.7.0, QAIRT 2.51, x86).

Also: reasons in QNN's verbose log, before the compile, for nodes that QNN does not take.

onnxruntime-qnn 2.7.0 validates each node. It logs the QNN op for the node, with the types and sizes
of the op's tensors, then PASSED, or FAILED with a reason. With `enable_framework_op_trace` it also
writes `qnn_op_trace.json`, but only after the compile: the QNN ops of each node that it took
(`trace`), and for other nodes the same reason without op and types.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from epctx.errors import CompileError
from epctx.graph.model import Refusal
from epctx.providers.base import KnownFault, Trace

if TYPE_CHECKING:
    import onnx_ir as ir


_COLUMNS: Final = 32
"""If the number of columns is a multiple of this, QAIRT 2.51 compiled MatMulNBits of 4 and 8 bits
to the same bytes for any content of unset memory (`MALLOC_PERTURB_`); with 16, 47, 48, 272, 688,
1000 and 2736 columns it did not."""

_CONV: Final = frozenset({"Conv", "ConvTranspose"})


def _is_float(node: ir.Node) -> bool:
    """Tell whether the node's input is float, not dequantized."""
    given = node.inputs[0]
    producer = None if given is None else given.producer()
    return producer is None or producer.op_type != "DequantizeLinear"


def _is_single(node: ir.Node) -> bool:
    """Tell whether the node normalizes a single row, as in a decoder at sequence 1."""
    shape = None if node.inputs[0] is None else node.inputs[0].shape
    return shape is not None and len(shape) > 1 and shape[-2] == 1


FAULTS: Final = (
    KnownFault(
        op_type="AveragePool",
        concerns=_is_float,
        what="QNN's x86 simulator computes AveragePool in float16 wrongly, and can crash on it "
        "(QAIRT 2.51); on a device it was not measured",
        remedy="keep AveragePool off QNN, or quantize the model",
    ),
    KnownFault(
        op_type="BatchNormalization",
        concerns=lambda node: not _is_float(node),
        what="QNN computes some quantized BatchNormalization wrongly: cosine 0.04 (QAIRT 2.51)",
        remedy="quantize with preset `qnn`, which writes it as Mul and Add; or keep it off QNN",
    ),
    KnownFault(
        op_type="RMSNormalization",
        concerns=_is_single,
        what="QNN computes RMSNormalization at sequence 1 wrongly: cosine 0.86 (QAIRT 2.51)",
        remedy="keep it off QNN, or write the norm as Mul, ReduceMean, Add, Sqrt and Div",
    ),
)


KEPT_OFF: Final = (
    "a Reshape to one dimension between a Conv and a Transpose ends QNN's compile by SIGABRT "
    "(onnxruntime 1.31.1)"
)
"""The reason why the nodes of `kept_off` stay on the CPU."""


def kept_off(nodes: Sequence[ir.Node]) -> frozenset[ir.Node]:
    """Return the nodes of a graph that must be kept off QNN, since they crash the process.

    QNN has a Conv's channels last, so ONNX Runtime 1.31.1 puts Transposes around a Conv and moves
    them down the graph. Moving a Transpose through a Reshape to one dimension fails an assertion.
    `as_strided` in the dynamo exports of ConvNeXt and EdgeNeXt (timm) is such a Reshape.
    """
    flat = frozenset(filter(_flattens, nodes))
    if not flat:
        return flat
    convs = [node for node in nodes if node.op_type in _CONV]
    movers = [*convs, *(node for node in nodes if node.op_type == "Transpose")]
    below = _reached(convs, lambda node: node.successors())
    return flat & below & _reached(movers, lambda node: node.predecessors())


def _flattens(node: ir.Node) -> bool:
    """Tell whether a node is a Reshape from at least three dimensions to one."""
    if node.op_type != "Reshape" or node.domain or node.inputs[0] is None:
        return False
    before, after = node.inputs[0].shape, node.outputs[0].shape
    return before is not None and after is not None and len(before) > 2 and len(after) == 1


def _reached(
    nodes: Sequence[ir.Node], beside: Callable[[ir.Node], Iterable[ir.Node]]
) -> set[ir.Node]:
    """Return all nodes that can be reached from `nodes` through `beside`."""
    reached: set[ir.Node] = set()
    pending = list(nodes)
    while pending:
        new = [each for each in beside(pending.pop()) if each not in reached]
        reached.update(new)
        pending += new
    return reached


def why_unstable(nodes: Sequence[ir.Node]) -> str | None:
    """Name the blockwise weights that QAIRT may write differently in each build; None if there are
    none.
    """
    odd = [
        f"{node.name!r} of {node.attributes.get_int('N')} columns"
        for node in nodes
        if node.op_type == "MatMulNBits" and node.attributes.get_int("N", 0) % _COLUMNS
    ]
    if not odd:
        return None
    more = f" and {len(odd) - 1} more" if odd[1:] else ""
    return (
        f"QAIRT 2.51 may write other bytes at each build for MatMulNBits {odd[0]}{more}: give such "
        f"weights a multiple of {_COLUMNS} columns, or leave the nodes out with `quantize.exclude` "
        "or `partition.exclude`"
    )


TRACE: Final = "qnn_op_trace.json"
"""File that QNN writes into the current folder, with `enable_framework_op_trace`."""
_TOKEN: Final = re.compile(r"_token_\d+$")
_VERDICT: Final = re.compile(
    r"Validation (?:PASSED|FAILED.*\n(?P<nodes>(?:\s*Operator type: .*\n)+)\s*REASON : (?P<why>.*))"
)
_NODE: Final = re.compile(r"Node name: (\S*) Node index: \d+")
_FAILED: Final = re.compile(
    r"backendValidateOpConfig\(\) failed for node `.*` of type `(?P<op>\w+)`"
)
_TRIED: Final = re.compile(
    r"QNN_op_type: (?P<op>\w+) .*\n node_inputs:\n(?P<inputs>(?: name=.*\n)*)"
    r" node_outputs:\n(?P<outputs>(?: name=.*\n)*)"
)
_TENSOR: Final = re.compile(r"dataType=QNN_DATATYPE_(\w+) rank=\d+ dimensions=\(([\d ]*)\)")
_SENTENCES: Final = re.compile(r"(?<=\.)(?=[A-Z])")
_STATIC: Final = (
    "constants in their places: `optimize: {level: basic}` makes them of what is computed from "
    "fixed sizes (`dimensions`, `shapes`); what depends on the data stays"
)
_REMEDIES: Final = (
    (
        r"(\w+) filtered off QNN by the op_affinity",
        r'a JSON file {"op_type": {"\1": "htp"}} as option op_affinity gives it to QNN',
    ),
    (
        r".*`Skip(?:Simplified)?LayerNormalization` are not supported",
        "`optimize: {level: [split-norms, basic]}` makes a sum and a norm of it, which QNN takes",
    ),
    (
        r"Failed to create GatherND node",
        "where the indices are constant, or computed from sizes in the manifest, "
        "`optimize: {level: [basic, slice-gathers]}` writes it as ops that QNN takes",
    ),
    (
        r".*`Trilu` are not supported",
        "a product with a constant mask, which QNN takes; in torch `x * torch.ones(x.shape[-2:])"
        ".tril()` for `torch.tril(x)`, with `.triu(k)` for `torch.triu(x, k)`",
    ),
    (
        r".*`Hardmax` are not supported",
        "ArgMax and OneHot, which QNN takes; in torch "
        "`torch.nn.functional.one_hot(x.argmax(-1), x.shape[-1]).float()`",
    ),
    (
        r"QNN Mod Op only support fmod == 0",
        "a division, which QNN takes; in torch `torch.sign(x) * torch.remainder(torch.abs(x), "
        "torch.abs(y))` for `torch.fmod(x, y)`",
    ),
    (r".*(?:must be static|must be constant|[Dd]ynamic)", _STATIC),
    (r"Failed to add node, Shape$", _STATIC),
)
"""Patterns of reasons (followed by QNN's op, if known) to remedies (2.7.0)."""


def refusals(log: str) -> Mapping[str, Refusal]:
    """Return the reasons why nodes are left, by node name, each with the QNN op that was
    refused.
    """
    refusal_of: dict[str, Refusal] = {}
    before = 0
    for verdict in _VERDICT.finditer(log):
        if verdict["nodes"] is not None:
            refusal = _refusal(verdict["why"], log[before : verdict.start()])
            refusal_of.update(dict.fromkeys(_NODE.findall(verdict["nodes"]), refusal))
        before = verdict.end()
    return refusal_of


def trace(content: bytes, names: Collection[str | None]) -> Trace:
    """Read a trace of nodes with these names. QNN's ops also come from nodes that ONNX Runtime
    inserted; it adds `_token_<number>` to the name of a node whose layout it changed.

    Raises:
        CompileError: the file is not as QNN 2.7.0 writes it.
    """
    ops: dict[str, tuple[str, ...]] = {}
    try:
        document = json.loads(content)
        for op in (op for graph in document["subgraph_traces"] for op in graph["op_mappings"]):
            for name in (each["name"] for each in op["sources"] if each["type"] == "OP"):
                own = name if name in names else _TOKEN.sub("", name)
                key = own if own in names else name
                ops[key] = (*ops.get(key, ()), op["dst_qnn_op_type"])
    except (KeyError, TypeError, ValueError) as error:
        raise CompileError(
            f"QNN wrote a {TRACE} of another form",
            why=f"{type(error).__name__}: {error}",
            remedy="leave out enable_framework_op_trace, and report it with the QNN version",
        ) from error
    return Trace(content=document, ops=ops)


def _refusal(reason: str, trial: str) -> Refusal:
    # The log joins sentences without a space; the first has the reason.
    why = _SENTENCES.split(reason.strip())[0].rstrip(".")
    failed = [each["op"] for each in _FAILED.finditer(trial)]
    tried = [each for each in _TRIED.finditer(trial) if each["op"] in failed[-1:]]
    return Refusal(
        why=why,
        op=failed[-1] if failed else "",
        operands=" -> ".join(map(_tensors, tried[-1].group("inputs", "outputs"))) if tried else "",
        remedy=_remedy(f"{why}, {failed[-1]}" if failed else why),
    )


def _tensors(listed: str) -> str:
    """List types and sizes of tensors, as in `BOOL_8[2,8], INT_32[2,1,8,8,2]`."""
    tensors = _TENSOR.findall(listed)
    return ", ".join(f"{kind}[{','.join(sizes.split())}]" for kind, sizes in tensors)


def _remedy(reason: str) -> str:
    matches = ((re.match(pattern, reason), remedy) for pattern, remedy in _REMEDIES)
    return next((match.expand(remedy) for match, remedy in matches if match is not None), "")
