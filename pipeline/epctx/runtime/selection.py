"""Which EP takes which EPContext node: by `source`, in priority order.

Source: the EPContext design, "Inference Workflow", Model Identification.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from epctx.errors import InvalidGraph, UsageError, require_list
from epctx.graph.epcontext import EPContextNode
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.parsing.rules import options
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.guard import guard

ProviderArgument = str | tuple[str, Mapping[str, OptionValue]]
Providers = Sequence[ProviderArgument] | Sequence[ExecutionProvider]
"""As callers name them, or bound to their options."""


class Claim(Struct, frozen=True, kw_only=True):
    """An EP and the nodes it takes, by index among the model's EPContext nodes."""

    provider: ExecutionProvider
    nodes: list[int] = field(default_factory=list)


def pairs(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None,
) -> list[tuple[str, Mapping[str, OptionValue]]] | None:
    """The EPs that a caller names, with their options, from onnxruntime's `providers` and
    `provider_options`. None: the caller names none.

    Raises:
        UsageError: options are given twice, or for other EPs than are named.
    """
    require_list("providers", providers)
    if providers is None:
        if provider_options:
            raise UsageError(
                "provider_options without providers",
                remedy="name the EPs in `providers`, in the same order",
            )
        return None
    names = [given if isinstance(given, str) else given[0] for given in providers]
    options = [{} if isinstance(given, str) else given[1] for given in providers]
    if provider_options:
        if len(provider_options) != len(names) or any(options):
            raise UsageError(
                f"{len(names)} providers and {len(provider_options)} provider_options",
                remedy="give each EP's options once, in `providers` or in `provider_options`",
            )
        options = list(provider_options)
    return list(zip(names, options, strict=True))


def bind(
    providers: Providers | None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None,
) -> list[ExecutionProvider] | None:
    """The EPs that a caller names; the default EP, which always is the last, left out.

    Raises:
        UsageError: as in `pairs`.
        ProviderUnavailable: an EP is not installed.
        ManifestError: an EP's schema, or the EP itself, refuses its options.
    """
    named: list[ProviderArgument] = []
    bound: list[ExecutionProvider] = []
    require_list("providers", providers)
    for provider in providers or ():
        if isinstance(provider, str | tuple):
            named.append(provider)
        else:
            bound.append(guard(provider, provider.name, provider.name))
    if bound:
        return bound
    given = pairs(None if providers is None else named, provider_options)
    if given is None:
        return None
    return [_bound(name, own) for name, own in given if name != DEFAULT_EP]


def _bound(name: str, given: Mapping[str, OptionValue]) -> ExecutionProvider:
    """An EP bound to options that its schema allows: real EPs take any, and ignore what they do not
    know (measured).
    """
    if not given:
        return registry.bind(name, {})

    return registry.bind(name, options.of_session(name, given))


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
