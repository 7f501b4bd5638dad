"""Options that an EP refuses, though its schema allows them."""

from __future__ import annotations

from collections.abc import Iterator

from epctx.commands.validate.finding import Finding, of_error
from epctx.errors import ManifestError, ProviderUnavailable
from epctx.manifest import Manifest
from epctx.parsing import precedence
from epctx.parsing.document.tree import Node
from epctx.providers import registry


def findings(root: Node, manifest: Manifest) -> Iterator[Finding]:
    """What the EPs of groups refuse, as a build binds them; what is not installed is not asked."""
    installed = registry.names()
    for tree, target in zip(precedence.targets(root), manifest.targets, strict=True):
        specs = {spec.alias: spec for group in target.groups for spec in group.execution_providers}
        for alias, spec in specs.items():
            if spec.provider not in installed:
                continue
            try:
                registry.create(spec)
            except ManifestError as error:
                entry = tree.providers[alias]
                yield of_error(error, _option(entry, error.what))
            except ProviderUnavailable:
                continue


def _option(entry: Node, what: str) -> Node:
    """The option that a message begins with the name of, else all of them."""
    options = entry.get("options") or entry
    return options.get(what.partition(" ")[0]) or options
