"""Findings of `epctx validate`, and findings about the options of EPs."""

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
    """Fault or warning.

    Attributes:
        exit_code: exit code of the build that fails because of it; 0 for a warning.
    """

    problem: Problem
    exit_code: int = 0


def of_error(
    error: EpctxError, place: Node | Problem, *, shown: Mapping[Path, str] = MappingProxyType({})
) -> Finding:
    """Make a finding from a build's error, at the value or key that causes it.

    Args:
        error: error that a build raises.
        place: the wrong value, or a problem of the wrong key.
        shown: files that the error may name, with their spelling in the manifest.
    """
    where = error.where or ""  # the finding has its own place in the manifest
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
    """Option whose name starts the message, else all options."""
    options = entry.get("options") or entry
    return options.get(what.partition(" ")[0]) or options
