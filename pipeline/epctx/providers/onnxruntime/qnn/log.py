"""What QNN's verbose log tells of the nodes that it does not take, before it compiles.

onnxruntime-qnn 2.7.0 validates each node: it logs the QNN op that it would make of it with the
types and sizes of its tensors, then PASSED, or FAILED with a reason. With
`enable_framework_op_trace` it writes `qnn_op_trace.json`, after the compile only: the QNN ops of
each node that it took, and of the others the same reason without op and types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from epctx.graph.model import Refusal

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
"""Of reasons, with QNN's op behind it if it got so far, those that can be mended (2.7.0): how."""


def refusals(log: str) -> Mapping[str, Refusal]:
    """By a node's name, why it is left, and as which QNN op it was refused."""
    found: dict[str, Refusal] = {}
    before = 0
    for verdict in _VERDICT.finditer(log):
        if verdict["nodes"] is not None:
            refusal = _refusal(verdict["why"], log[before : verdict.start()])
            found.update(dict.fromkeys(_NODE.findall(verdict["nodes"]), refusal))
        before = verdict.end()
    return found


def _refusal(said: str, trial: str) -> Refusal:
    # Of several sentences without a space between them, the first says it.
    why = _SENTENCES.split(said.strip())[0].rstrip(".")
    failed = [each["op"] for each in _FAILED.finditer(trial)]
    tried = [each for each in _TRIED.finditer(trial) if each["op"] in failed[-1:]]
    return Refusal(
        why=why,
        op=failed[-1] if failed else "",
        operands=" -> ".join(map(_tensors, tried[-1].group("inputs", "outputs"))) if tried else "",
        remedy=_remedy(f"{why}, {failed[-1]}" if failed else why),
    )


def _tensors(listed: str) -> str:
    """Types and sizes of tensors, as in `BOOL_8[2,8], INT_32[2,1,8,8,2]`."""
    found = _TENSOR.findall(listed)
    return ", ".join(f"{kind}[{','.join(sizes.split())}]" for kind, sizes in found)


def _remedy(said: str) -> str:
    matches = ((re.match(pattern, said), remedy) for pattern, remedy in _REMEDIES)
    return next((match.expand(remedy) for match, remedy in matches if match is not None), "")
