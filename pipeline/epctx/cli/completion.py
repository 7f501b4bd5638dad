"""Complete values in a shell; Typer completes commands, options and paths."""

from __future__ import annotations

from pathlib import Path

import typer

from epctx.commands.reproduce.result import VARIATIONS
from epctx.error_codes import Code
from epctx.errors import EpctxError
from epctx.parsing import load
from epctx.parsing.schema import apply as known_schemas
from epctx.parsing.schema import providers as known_providers


def providers(incomplete: str) -> list[str]:
    """Complete ONNX Runtime's names of EPs."""
    return [name for name in known_providers.known() if name.startswith(incomplete)]


def options(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the options of the EP that `--provider` names, as `KEY=`."""
    provider = ctx.params.get("provider")
    try:
        schema = known_providers.find(provider) if isinstance(provider, str) else None
    except EpctxError:
        return []
    return (
        [f"{name}=" for name in schema.properties if name.startswith(incomplete)] if schema else []
    )


def schemas(incomplete: str) -> list[str]:
    """Complete names of schemas."""
    return [name for name in known_schemas.names() if name.startswith(incomplete)]


def codes(incomplete: str) -> list[str]:
    """Complete codes of errors."""
    return [code for code in Code if code.startswith(incomplete)]


def variations(incomplete: str) -> list[str]:
    """Complete the variations of `epctx reproduce`."""
    return [name for name in VARIATIONS if name.startswith(incomplete)]


def groups(ctx: typer.Context, incomplete: str) -> list[str]:
    """Complete the groups of the manifest on the command line, with targets if it has several."""
    named = ctx.params.get("manifest") or next(iter(ctx.args), None)  # if parsed already
    try:
        path = Path(named or "")
        targets = load.load(path, allow_outside=True).targets if path.is_file() else ()
    except EpctxError:
        return []
    built = [(group.name, t.name) for t in targets for group in t.groups]
    built += [(composition.name, t.name) for t in targets for composition in t.compositions]
    labels = [f"{name}@{target}" for name, target in built]
    names = [name for name, _ in built]
    candidates = dict.fromkeys(names if len(targets) == 1 else [*names, *labels])
    return [name for name in candidates if name.startswith(incomplete)]
