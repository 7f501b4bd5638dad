"""Findings of `epctx validate`, and those about the options of EPs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from epctx.errors import EpctxError, ManifestError, ProviderUnavailable
from epctx.manifest import Manifest
from epctx.parsing import precedence
from epctx.parsing.document.tree import Node, Problem
from epctx.providers import registry


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that is wrong, or a doubt.

    Attributes:
        exit_code: of the build that fails by it; 0: none does, it is a warning.
    """

    problem: Problem
    exit_code: int = 0


def of_error(
    error: EpctxError, place: Node | Problem, *, shown: Mapping[Path, str] = MappingProxyType({})
) -> Finding:
    """Make a finding of a build's error, at the value or key that causes it.

    Args:
        error: as a build raises it.
        place: the value, or a problem of the key.
        shown: files that the error may name, as the manifest names them.
    """
    where = error.where or ""  # a place in the manifest is told as such already
    file = next((where.replace(str(p), text) for p, text in shown.items() if str(p) in where), None)
    words = error.reason if file is None else f"{file}: {error.reason}"
    problem = Problem(
        mark=place.mark, path=place.path, what=words, remedy=error.remedy, code=error.code
    )
    return Finding(problem=problem, exit_code=error.exit_code)


def findings(root: Node, manifest: Manifest) -> Iterator[Finding]:
    """Find options that EPs refuse when a build binds them; skips EPs that are not installed."""
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
