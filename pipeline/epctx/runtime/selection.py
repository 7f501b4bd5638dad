"""Which EP takes which EPContext node: by `source`, in priority order.

Source: the EPContext design, "Inference Workflow", Model Identification.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field

from epctx.errors import InvalidGraph
from epctx.graph.epcontext import EPContextNode
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider


class Claim(Struct, frozen=True, kw_only=True):
    """An EP and the nodes it takes, by index among the model's EPContext nodes."""

    provider: ExecutionProvider
    nodes: list[int] = field(default_factory=list)


def claim(
    nodes: Sequence[EPContextNode], providers: Sequence[ExecutionProvider] | None
) -> list[Claim]:
    """Each EP with the nodes that it takes, in priority order.

    Args:
        nodes: the model's EPContext nodes.
        providers: the EPs of the session; None: for each source the installed EP that accepts it.

    Raises:
        InvalidGraph: a node that no EP takes.
    """
    claims = [Claim(provider=provider) for provider in providers or ()]
    for index, node in enumerate(nodes):
        found = _find(claims, node.source)
        if found is None and providers is None and node.source is not None:
            provider = registry.accepting(node.source)
            if provider is not None:
                found = Claim(provider=provider)
                claims.append(found)
        if found is None:
            raise _unclaimed(node, providers)
        found.nodes.append(index)
    return [found for found in claims if found.nodes]


def _find(claims: Sequence[Claim], source: str | None) -> Claim | None:
    return next((found for found in claims if source in found.provider.sources), None)


def _unclaimed(node: EPContextNode, providers: Sequence[ExecutionProvider] | None) -> InvalidGraph:
    if node.source is None:
        what, remedy = "has no `source`, so it is for no EP", "build the model again"
    elif providers is None:
        what = f"is for source {node.source!r}, which no installed EP accepts by default"
        remedy = (
            "install the EP, or name it with its options: "
            f'providers=[("ReferenceExecutionProvider", {{"source": "{node.source}"}})]'
        )
    else:
        accepted = sorted({source for p in providers for source in p.sources})
        what = f"is for source {node.source!r}, the EPs of this session accept " + (
            ", ".join(accepted) or "none"
        )
        remedy = "add its EP to `providers`"
    return InvalidGraph(what, node=node.name, remedy=remedy)
