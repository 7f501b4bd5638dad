"""`partition.exclude`: nodes that the manifest keeps off every EP, by op type or by name."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.manifest import PartitionSettings
from epctx.text import nearest, suggesting

if TYPE_CHECKING:
    import onnx_ir as ir


class Named(Protocol):
    """What `exclude` sees of a node."""

    @property
    def domain(self) -> str:
        """Empty for the default domain."""
        ...

    @property
    def op_type(self) -> str:
        """As in ONNX."""
        ...

    @property
    def name(self) -> str | None:
        """None or empty: it has none."""
        ...


class Unmatched(Struct, frozen=True, kw_only=True):
    """An entry of `exclude` that matches no node of a model.

    Attributes:
        key: `op_types` or `nodes`.
        entry: as the manifest has it.
        near: the name in the model that it is most like, if there is one.
    """

    key: str
    entry: str
    near: str | None


class Exclusion:
    """Matches nodes against `partition.exclude`.

    An op type is `Op` or `ai.onnx::Op` for the default domain, `domain::Op` for any other. A node
    pattern is matched against the whole name, case and all: `*` is any run of characters, `/`
    included, `?` is one character, `[...]` one of several.
    """

    def __init__(self, settings: PartitionSettings) -> None:
        self._ops = {operator(entry): entry for entry in settings.exclude_op_types}
        self._names = [
            (entry, re.compile(fnmatch.translate(entry))) for entry in settings.exclude_nodes
        ]

    def reason(self, node: ir.Node) -> str | None:
        """Why the node is kept off every EP; None if it is not."""
        entry = self._ops.get((node.domain, node.op_type))
        if entry is not None:
            return f"excluded by manifest: op type {entry}"
        for entry, pattern in self._names:
            if pattern.match(node.name or ""):
                return f'excluded by manifest: node name "{entry}"'
        return None

    def unmatched(
        self, nodes: Iterable[Named], registered: Callable[[str, str], bool]
    ) -> tuple[Unmatched, ...]:
        """The entries that look misspelt: they match none of these nodes.

        An op type that is registered is not one of them: a manifest may keep every TopK off an EP,
        whether a model has one or not.

        Args:
            nodes: of one model's main graph.
            registered: whether there is an operator of this domain and op type.
        """
        found = list(nodes)
        ops = {(node.domain, node.op_type) for node in found}
        names = sorted({node.name for node in found if node.name})
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
    """An op type of the manifest as (domain, op type); the default domain is ""."""
    domain, _, op_type = entry.rpartition("::")
    return ("" if domain == "ai.onnx" else domain), op_type


def refuse_unmatched(models: Sequence[Sequence[Unmatched]], *, where: str) -> None:
    """Raise if an entry of `exclude` matches no node of any model that it is meant for.

    Such an entry is a misspelt one, and the nodes that it should keep off an EP would be compiled.

    Args:
        models: for each model of the group, what `Exclusion.unmatched` found.
        where: the model group, as the message names it.

    Raises:
        ManifestError: naming every such entry, with the name that is most like it.
    """
    found = in_all(models)
    if found:
        raise refusal(found, where=where)


def in_all(models: Sequence[Sequence[Unmatched]]) -> tuple[Unmatched, ...]:
    """What is unmatched in every one of the models, with the nearest name of any; none of none."""
    if not models:
        return ()
    everywhere = set[tuple[str, str]].intersection(
        *({(found.key, found.entry) for found in model} for model in models)
    )
    near: dict[tuple[str, str], str | None] = dict.fromkeys(sorted(everywhere))
    for found in (found for model in models for found in model):
        if (found.key, found.entry) in near and found.near is not None:
            near[found.key, found.entry] = found.near
    return tuple(Unmatched(key=key, entry=entry, near=name) for (key, entry), name in near.items())


def refusal(unmatched: Sequence[Unmatched], *, where: str) -> ManifestError:
    """The error about entries that match nothing."""
    listed = "; ".join(
        f'partition.exclude.{each.key} "{each.entry}"'
        + (f' (did you mean "{each.near}"?)' if each.near else "")
        for each in unmatched
    )
    return ManifestError(
        f"nothing in the optimized models matches {listed}",
        where=where,
        remedy="correct it or take it out; `epctx plan --partition` lists the nodes",
        code=Code.NOTHING_EXCLUDED,
    )
