"""Compare a QNN context binary with the EPContext nodes that refer to it.

QNN 2.7.0 binds a tensor of a graph to the node's input or output of the same name, else to the one
that the attribute `io_name_overrides` gives. If the node has that attribute and neither matches,
the process ends with SIGABRT. Without the attribute QNN binds by a position that depends on the
order in which the rest of the model reads the outputs. That gives wrong numbers without an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from epctx.errors import CompileError
from epctx.graph.epcontext import EPContextNode
from epctx.providers.base import BinaryGraph, BinaryTensor, Verdict
from epctx.providers.onnxruntime.qnn import socs
from epctx.providers.onnxruntime.qnn.binary import QnnBinary, QnnContext
from epctx.providers.onnxruntime.qnn.options import QnnOptions

if TYPE_CHECKING:
    import onnx_ir as ir


FLEXIBLE: Final = "is_multi_soc_ep_context"
"""Attribute of an EPContext node whose context binary is for several chips."""


def require(
    binary: QnnBinary,
    nodes: Sequence[ir.Node],
    *,
    chips: Sequence[int],
    where: str,
    all_nodes: bool = True,
) -> None:
    """Check that the binary has every node's graph, inputs and outputs, for each chip of the
    options.

    Args:
        chips: the chips of the options; empty if any chip will do.
        all_nodes: the binary must not have graphs of other nodes.

    Raises:
        CompileError: a graph, input, output or chip is missing or differs.
    """
    contained = [each.soc_model for each in binary.contexts if each.soc_model is not None]
    if chips and contained and sorted(contained) != sorted(chips):
        wrong = f"it is for soc_model {socs.listed(contained)}, not {socs.listed(chips)}"
        raise _misfit(wrong, where)
    for node in nodes:
        flag = node.attributes.get(FLEXIBLE)
        if binary.flexible != bool(flag is not None and flag.as_int()):
            wrong = (
                f"it is for {len(binary.contexts)} chip(s); {FLEXIBLE} of node {node.name} "
                "disagrees"
            )
            raise _misfit(wrong, where)
    for context in binary.contexts:
        _require_graphs(context, nodes, where, all_nodes=all_nodes)


def _require_graphs(
    context: QnnContext, nodes: Sequence[ir.Node], where: str, *, all_nodes: bool
) -> None:
    graphs = {graph.name: graph for graph in context.graphs}
    if len(nodes) == len(graphs) == 1:
        # QNN finds a single graph without its name, and a prefix may have changed the name in the
        # node.
        _require_interface(context.graphs[0], nodes[0], where)
        return
    names = sorted(node.name or "" for node in nodes)
    if (sorted(graphs) != names) if all_nodes else not graphs.keys() >= set(names):
        raise _misfit(f"it holds {', '.join(sorted(graphs))}; the nodes are {names}", where)
    for node in nodes:
        _require_interface(graphs[node.name or ""], node, where)


def _require_interface(graph: BinaryGraph, node: ir.Node, where: str) -> None:
    own_names = EPContextNode.from_ir(node).own_names
    for kind, tensors, values in (
        ("inputs", graph.inputs, node.inputs),
        ("outputs", graph.outputs, node.outputs),
    ):
        given = {tensor.name: tensor for tensor in tensors}
        names = [value.name or "" for value in values if value is not None]
        bound = [name if name in given else own_names.get(name, name) for name in names]
        if sorted(bound) != sorted(given):
            raise _misfit(
                f"graph {graph.name} has the {kind} {', '.join(sorted(given))}; node {node.name} "
                f"has {', '.join(sorted(bound))}",
                where,
            )
        for name, value in zip(bound, filter(None, values), strict=True):
            if not _same_size(given[name], value):
                raise _misfit(
                    f"{name} of graph {graph.name} has the shape {list(given[name].shape)}; in "
                    f"the model it has {value.shape}",
                    where,
                )


def _same_size(tensor: BinaryTensor, value: ir.Value) -> bool:
    """Compare the sizes where both are known. QNN may write a scalar as one element."""
    shape = value.shape
    if shape is None or not shape.is_static():
        return True
    return prod(tensor.shape) == prod(shape.numpy())


def _misfit(why: str, where: str) -> CompileError:
    return CompileError(
        "the context binary does not match its models",
        where=where,
        why=why,
        remedy="build again; if the error stays, report it with the models",
    )


class Compatibility(Struct, frozen=True, kw_only=True):
    """QNN's compatibility string: `v2:6:2.51.0:5.51.0:0:60:0:0`, for several chips
    `v2:6:2.51.0:5.51.0:0,0:60,57:0,0:0`.

    Attributes:
        qairt: version of the SDK.
        archs: for each chip the HTP architecture of the option; 0 if the chip decided.
        chips: their numbers.
        vtcms: for each chip the VTCM of the option, in MiB; 0 if QNN decided.
    """

    qairt: str
    archs: tuple[int, ...]
    chips: tuple[int, ...]
    vtcms: tuple[int, ...]

    @classmethod
    def parse(cls, info: str) -> Compatibility | None:
        """Parse the string; None if it does not have the form of onnxruntime-qnn 2.7."""
        fields = info.split(":")
        lists = [field.split(",") for field in fields[4:7]]
        numbers = all(n.isdecimal() and len(n) < 10 for listed in lists for n in listed)
        if len(fields) != 8 or fields[0] != "v2" or not numbers:
            return None
        archs, chips, vtcms = (tuple(map(int, listed)) for listed in lists)
        return cls(qairt=fields[2], archs=archs, chips=chips, vtcms=vtcms)


def compatibility_verdict(info: str | None, options: QnnOptions, *, key: str) -> Verdict:
    """Check that a model is for the chip, architecture and VTCM of the options.

    Args:
        info: the model's compatibility string; None if there is none.
        key: metadata key of the string in the model.
    """
    if info is None:
        return Verdict(
            outcome="fail",
            message=f"it has no {key}",
            remedy="build it again; onnxruntime-qnn 2 and later write it",
        )
    stated = Compatibility.parse(info)
    if stated is None:
        return Verdict(outcome="not checkable", message=f"{info!r} has an unknown form")
    words = f"it is for soc_model {socs.listed(stated.chips)}, made by QAIRT {stated.qairt}"
    settings = {
        "soc_model": (sorted(stated.chips), sorted(options.chips)),
        "htp_arch": (
            sorted({*stated.archs}),
            [] if options.arch is None else [options.arch],
        ),
        "vtcm_mb": (sorted({*stated.vtcms}), [] if options.vtcm is None else [options.vtcm]),
    }
    wrong = [
        f"{option} is {_listed_words(have)}, not {_listed_words(want)}"
        for option, (have, want) in settings.items()
        if want and have != want
    ]
    if not wrong:
        return Verdict(outcome="pass", message=words)
    return Verdict(
        outcome="fail",
        message=f"{words}: {', '.join(wrong)}",
        remedy="build it again with these options",
    )


def _listed_words(numbers: Sequence[int]) -> str:
    return " and ".join(map(str, numbers))
