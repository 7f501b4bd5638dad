"""Select the EPs that run a model: by name, and by `source` for each EPContext node.

EPContext nodes are taken by `source`, in priority order. Source: the EPContext design, "Inference
Workflow", Model Identification.

A model without contexts runs on the named EPs of onnxruntime, or is refused. Left alone,
onnxruntime silently runs the nodes that an EP does not take, or all nodes if an EP cannot be made,
on the CPU (measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from epctx.errors import CompileError, InvalidGraph, UsageError
from epctx.graph.epcontext import EPContextNode
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.parsing.rules import options
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider
from epctx.providers.onnxruntime.session import Mark

ProviderArgument = str | tuple[str, Mapping[str, OptionValue]]
"""An EP by its name, or with its options."""


def pairs(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None,
) -> list[tuple[str, Mapping[str, OptionValue]]] | None:
    """Return each EP with its options, from onnxruntime's `providers` and `provider_options`; None
    if the caller names no EPs.

    Raises:
        UsageError: options are given twice, or for other EPs than are named.
    """
    if providers is None:
        if provider_options:
            raise UsageError(
                "`provider_options` is given without `providers`",
                remedy="name the EPs in `providers`, in the same order",
            )
        return None
    names = [given if isinstance(given, str) else given[0] for given in providers]
    given_options = [{} if isinstance(given, str) else given[1] for given in providers]
    if provider_options:
        if len(provider_options) != len(names) or any(given_options):
            raise UsageError(
                f"`provider_options` ({len(provider_options)} entries) does not match `providers` "
                f"({len(names)} entries), or both give options",
                remedy="give each EP's options once, in `providers` or in `provider_options`",
            )
        given_options = list(provider_options)
    return list(zip(names, given_options, strict=True))


def bind(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None,
) -> list[ExecutionProvider] | None:
    """Return the EPs that a caller names, without the default EP, which is always the last; None if
    the caller names no EPs.

    Raises:
        UsageError: as in `pairs`.
        ProviderUnavailable: an EP is not installed.
        ManifestError: an EP's schema, or the EP itself, refuses its options.
    """
    named = pairs(providers, provider_options)
    if named is None:
        return None
    return [_bound(name, given) for name, given in named if name != DEFAULT_EP]


def _bound(name: str, given: Mapping[str, OptionValue]) -> ExecutionProvider:
    """Bind an EP to options that its schema allows, since real EPs accept and ignore unknown
    options (measured).
    """
    return registry.bind(name, options.of_session(name, given) if given else {})


class Claim(Struct, frozen=True, kw_only=True):
    """An EP with the nodes it takes, by index among the model's EPContext nodes."""

    provider: ExecutionProvider
    nodes: list[int] = field(default_factory=list)


def claim(
    nodes: Sequence[EPContextNode], providers: Sequence[ExecutionProvider] | None
) -> list[Claim]:
    """Return each EP with the nodes that it takes, in priority order.

    Args:
        nodes: the model's EPContext nodes.
        providers: the EPs of the session; None for the installed EP that accepts each source.

    Raises:
        InvalidGraph: no EP takes a node.
    """
    claims = [Claim(provider=provider) for provider in providers or ()]
    for index, node in enumerate(nodes):
        owner = _find(claims, node.source)
        if owner is None and providers is None and node.source is not None:
            provider = registry.accepting(node.source)
            if provider is not None:
                owner = Claim(provider=provider)
                claims.append(owner)
        if owner is None:
            raise _unclaimed(node, providers)
        owner.nodes.append(index)
    return [owner for owner in claims if owner.nodes]


def _find(claims: Sequence[Claim], source: str | None) -> Claim | None:
    return next((found for found in claims if source in found.provider.sources), None)


def _unclaimed(node: EPContextNode, providers: Sequence[ExecutionProvider] | None) -> InvalidGraph:
    if node.source is None:
        what, remedy = "has no `source`, so no EP takes it", "build the model again"
    elif providers is None:
        what = f"is for source {node.source!r}, which no installed EP accepts by default"
        remedy = (
            "install the EP, or name it with its options: "
            f'providers=[("ReferenceExecutionProvider", {{"source": "{node.source}"}})]'
        )
    else:
        accepted = sorted({source for p in providers for source in p.sources})
        what = f"is for source {node.source!r}, but the EPs of this session accept " + (
            ", ".join(accepted) or "none"
        )
        remedy = "add its EP to `providers`"
    return InvalidGraph(what, node=node.name, remedy=remedy)


def able(providers: Sequence[ExecutionProvider], where: str) -> list[ExecutionProvider]:
    """Return the named EPs that can run uncompiled models.

    Raises:
        UsageError: no named EP can, so the CPU would run the whole model.
    """
    native = [provider for provider in providers if provider.native]
    if providers and not native:
        raise runs_contexts_only(providers[0], where)
    return native


def runs_contexts_only(provider: ExecutionProvider, where: str) -> UsageError:
    """Make the error for an EP that cannot run an uncompiled model."""
    return UsageError(
        f"{provider.name} runs compiled models only",
        where=where,
        why="it has no EPContext node, so all of it would run on the CPU",
        remedy="compile it (`epctx init MODEL` and `epctx build`, or `epctx.compile_model`), and "
        "run the compiled model",
    )


def require_some(
    providers: Sequence[ExecutionProvider], taken: Mapping[str, int], where: str, log: Mark
) -> None:
    """Check that at least one of the EPs that a caller names runs a part of the model.

    Args:
        taken: number of nodes that each EP took, by name.
        log: mark of the log's start for the session.

    Raises:
        CompileError: none of the EPs took a node.
    """
    if providers and not any(taken.get(provider.name) for provider in providers):
        raise took_nothing(providers[0], where, log.errors())


def require_each(
    providers: Sequence[ExecutionProvider], taken: Mapping[str, int], where: str
) -> None:
    """Check that each EP that a caller names runs a part of the model.

    Raises:
        UsageError: an EP takes no node, while others do.
    """
    for provider in providers:
        if not taken.get(provider.name):
            raise UsageError(
                f"{provider.name} takes no node of it",
                where=where,
                why="all of it runs on " + " and ".join(taken),
                remedy=f"leave {provider.name} out, or see with `epctx inspect` which execution "
                "providers the model is for",
            )


def took_nothing(
    provider: ExecutionProvider, where: str, logged: Sequence[str] = ()
) -> CompileError:
    """Make the error for a named EP that takes no node of a model, so that another EP would
    run it.
    """
    remedy = provider.nothing_compiled_remedy()
    if provider.static_shapes:
        remedy += "; it needs static shapes, as `--dimension NAME=SIZE` gives them"
    return CompileError(
        f"{provider.name} takes no node of it",
        where=where,
        why="; ".join(logged[:3]) or f"{DEFAULT_EP} would run the whole model",
        remedy=remedy,
    )
