"""`partition.exclude`: nodes that the manifest keeps off every EP, by op type or by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.manifest import PartitionSettings
from epctx.text import nearest, suggesting

if TYPE_CHECKING:
    import onnx_ir as ir


class NodeName(NamedTuple):
    """Op type and name of a node that is not in memory."""

    domain: str
    op_type: str
    name: str


class Unmatched(Struct, frozen=True, kw_only=True):
    """An entry of `exclude` that matches no node of a model.

    Attributes:
        key: `op_types` or `nodes`.
        entry: the manifest's entry.
        near: the nearest name in the model; None if there is none.
    """

    key: str
    entry: str
    near: str | None


class Exclusion:
    """Matches nodes against `partition.exclude`.

    An op type is `Op` or `ai.onnx::Op` for the default domain, `domain::Op` for any other. A node
    pattern is matched against the whole name, case included: `*` is any run of characters, `/`
    included, `?` is one character, `[...]` one of several.
    """

    def __init__(self, settings: PartitionSettings) -> None:
        self._ops = {operator(entry): entry for entry in settings.exclude_op_types}
        self._names = [
            (entry, re.compile(fnmatch.translate(entry))) for entry in settings.exclude_nodes
        ]

    def reason(self, node: ir.Node) -> str | None:
        """Return why a node is kept off every EP; None if it is not."""
        entry = self._ops.get((node.domain, node.op_type))
        if entry is not None:
            return f"excluded by manifest: op type {entry}"
        for entry, pattern in self._names:
            if pattern.match(node.name or ""):
                return f'excluded by manifest: node name "{entry}"'
        return None

    def unmatched(
        self, nodes: Iterable[NodeName | ir.Node], registered: Callable[[str, str], bool]
    ) -> tuple[Unmatched, ...]:
        """Return the entries that look misspelt: they match none of these nodes.

        A registered op type is never misspelt: a manifest may keep every TopK off an EP, whether a
        model has one or not.

        Args:
            nodes: nodes of one model's main graph.
            registered: tells whether a domain has an op type.
        """
        listed = list(nodes)
        ops = {(node.domain, node.op_type) for node in listed}
        names = sorted({node.name for node in listed if node.name})
        spelt = sorted(f"{domain}::{op}" if domain else op for domain, op in ops)
        wrong_ops = (
            entry for op, entry in self._ops.items() if op not in ops and not registered(*op)
        )
        wrong_names = (
            entry for entry, pattern in self._names if not any(map(pattern.match, names))
        )
        with suggesting():
            return (
                *(Unmatched(key="op_types", entry=e, near=nearest(e, spelt)) for e in wrong_ops),
                *(Unmatched(key="nodes", entry=e, near=nearest(e, names)) for e in wrong_names),
            )


def operator(entry: str) -> tuple[str, str]:
    """Return an op type of the manifest as (domain, op type); the default domain is ""."""
    domain, _, op_type = entry.rpartition("::")
    return ("" if domain == "ai.onnx" else domain), op_type


def refuse_unmatched(models: Sequence[Sequence[Unmatched]], *, where: str) -> None:
    """Refuse entries of `exclude` that match no node of any model of the group.

    Such an entry is misspelt, and the nodes that it should keep off an EP would be compiled.

    Args:
        models: results of `Exclusion.unmatched` for each model of the group.
        where: the model group, for the message.

    Raises:
        ManifestError: there are such entries; the message has the nearest names.
    """
    entries = in_all(models)
    if entries:
        raise refusal(entries, where=where)


def in_all(models: Sequence[Sequence[Unmatched]]) -> tuple[Unmatched, ...]:
    """Return entries that match no node in any model, with suggestions; none without models."""
    if not models:
        return ()
    everywhere = set[tuple[str, str]].intersection(
        *({(each.key, each.entry) for each in model} for model in models)
    )
    near: dict[tuple[str, str], str | None] = dict.fromkeys(sorted(everywhere))
    for each in (each for model in models for each in model):
        if (each.key, each.entry) in near and each.near is not None:
            near[each.key, each.entry] = each.near
    return tuple(Unmatched(key=key, entry=entry, near=name) for (key, entry), name in near.items())


def refusal(unmatched: Sequence[Unmatched], *, where: str) -> ManifestError:
    """Return the error about entries that match no node."""
    listed = "; ".join(
        f'partition.exclude.{each.key} "{each.entry}"'
        + (f' (did you mean "{each.near}"?)' if each.near else "")
        for each in unmatched
    )
    return ManifestError(
        f"no node of the optimized models matches {listed}",
        where=where,
        remedy="correct it or take it out; `epctx plan --partition` lists the nodes",
        code=Code.NOTHING_EXCLUDED,
    )
