"""The execution providers that the nodes of a folder belong to, by `source`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from epctx.errors import EpctxError
from epctx.manifest import ProviderSpec
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider


@dataclass(kw_only=True)
class Providers:
    """EPs by the `source` that they accept; what is missing says why.

    Attributes:
        asked: the manifest's EPs, bound to their options, in priority order; None: no manifest,
            then any installed EP with its default options.
        missing: names of EPs of the manifest that this host does not have, and why.
    """

    asked: tuple[ExecutionProvider, ...] | None = None
    missing: Mapping[str, str] = field(default_factory=dict)
    _found: dict[str, ExecutionProvider | None] = field(default_factory=dict, init=False)

    @classmethod
    def of_group(cls, specs: Iterable[ProviderSpec]) -> Providers:
        """The EPs that a model group asks for."""
        asked: list[ExecutionProvider] = []
        missing: dict[str, str] = {}
        for spec in specs:
            try:
                asked.append(registry.create(spec))
            except EpctxError as error:
                missing[spec.provider] = str(error).replace("\n  -> ", "; ")
        return cls(asked=tuple(asked), missing=missing)

    def find(self, source: str) -> ExecutionProvider | None:
        """The EP that takes nodes of this source; None if there is none here."""
        if source not in self._found:
            if self.asked is None:
                self._found[source] = registry.accepting(source)
            else:
                takers = (provider for provider in self.asked if source in provider.sources)
                self._found[source] = next(takers, None)
        return self._found[source]

    def of(self, sources: Iterable[str]) -> tuple[ExecutionProvider, ...]:
        """The EPs that there are for nodes of these sources, each once."""
        found = map(self.find, sources)
        return tuple({id(each): each for each in found if each is not None}.values())

    def why_not(self, source: str) -> str:
        """Return the remedy for a source that `find` does not know."""
        if self.missing:
            return "; ".join(self.missing.values())
        if self.asked is not None:
            known = ", ".join(sorted(s for p in self.asked for s in p.sources)) or "none"
            return f"the manifest's execution providers have the sources: {known}"
        return (
            "install the package of the EP that it is for, or give the EP's options "
            f"with --manifest; installed are {', '.join(registry.names())}"
        )
