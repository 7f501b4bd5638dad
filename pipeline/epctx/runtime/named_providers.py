"""The EPs that a caller of the Python API names, bound to their options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epctx.errors import UsageError, require_list
from epctx.manifest import DEFAULT_EP, OptionValue
from epctx.parsing.rules import options
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider

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
    require_list("providers", providers)
    if providers is None:
        if provider_options:
            raise UsageError(
                "provider_options without providers",
                remedy="name the EPs in `providers`, in the same order",
            )
        return None
    names = [given if isinstance(given, str) else given[0] for given in providers]
    given_options = [{} if isinstance(given, str) else given[1] for given in providers]
    if provider_options:
        if len(provider_options) != len(names) or any(given_options):
            raise UsageError(
                f"{len(names)} providers and {len(provider_options)} provider_options",
                remedy="give each EP's options once, in `providers` or in `provider_options`",
            )
        given_options = list(provider_options)
    return list(zip(names, given_options, strict=True))


def bind(
    providers: Sequence[ProviderArgument] | None,
    provider_options: Sequence[Mapping[str, OptionValue]] | None,
) -> list[ExecutionProvider] | None:
    """Return the EPs that a caller names without the default EP, which always is the last; None if
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
    """Bind an EP to options that its schema allows: real EPs take any, and ignore what they do not
    know (measured).
    """
    return registry.bind(name, options.of_session(name, given) if given else {})
