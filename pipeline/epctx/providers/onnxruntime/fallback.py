"""What an EP would leave to the CPU of what it is given, asked before anything is compiled.

ONNX Runtime tells who took which node only when it has compiled (real-eps.md section 4). Before,
QNN says of each node in its verbose log whether it takes it; OpenVINO says nothing, and is asked
node by node, once for those that differ in no more than their weights and sizes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Hashable, Mapping
from pathlib import Path

import onnx_ir as ir
from msgspec.structs import replace

from epctx.errors import CompileError, ModelError
from epctx.graph.model import Partition, Refusal
from epctx.providers.onnxruntime import alternatives, probe, session
from epctx.providers.onnxruntime.ep import OrtEp


def by_log(model: ir.Model, partition: Partition, provider: OrtEp) -> Mapping[ir.Node, Refusal]:
    """The nodes that the EP's verbose log says it does not take, why, and what would change it.

    Raises:
        CompileError: onnxruntime or the EP failed on the partition.
    """
    with provider.compiling(), tempfile.TemporaryDirectory(prefix="epctx-probe-") as folder:
        path = probe.write(model, partition, Path(folder))
        log = session.ask_verbosely(str(path), provider)
    reasons = provider.reasons(log)
    named = {probe.name_of(node): node for node in partition.nodes}
    refused = {named[name]: why for name, why in reasons.items() if name in named}
    helpless = [node for node, why in refused.items() if not why.remedy]
    found = alternatives.remedies(model, helpless, provider)
    return {node: replace(why, remedy=found.get(node, why.remedy)) for node, why in refused.items()}


def one_by_one(model: ir.Model, partition: Partition, provider: OrtEp) -> Mapping[ir.Node, str]:
    """The nodes that the EP does not take where each is a model of its own."""
    known: dict[Hashable, bool] = {}
    for node in partition.nodes:
        kind = probe.kind(node)
        if kind not in known:
            known[kind] = _takes(model, node, provider)
    why = f"{provider.name} did not take it, and does not say why"
    return {node: why for node in partition.nodes if not known[probe.kind(node)]}


def _takes(model: ir.Model, node: ir.Node, provider: OrtEp) -> bool:
    try:
        return probe.takes_whole(model, node, provider)
    except (CompileError, ModelError):
        return True  # alone it is no model; in the whole one it may well be taken
