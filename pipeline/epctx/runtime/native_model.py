"""A model without contexts on EPs of onnxruntime that a caller names: run there, or refused.

onnxruntime runs on the CPU what an EP does not take, and what an EP that cannot be made should have
run, without a word (measured).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from epctx.errors import CompileError, UsageError
from epctx.manifest import DEFAULT_EP
from epctx.providers.base import ExecutionProvider
from epctx.providers.onnxruntime.native_log import Mark


def able(providers: Sequence[ExecutionProvider], where: str) -> list[ExecutionProvider]:
    """Those of the EPs that a caller names which run models that were not compiled.

    Raises:
        UsageError: there is none among them, and the CPU would run all of the model.
    """
    found = [provider for provider in providers if provider.native]
    if providers and not found:
        raise runs_contexts_only(providers[0], where)
    return found


def runs_contexts_only(provider: ExecutionProvider, where: str) -> UsageError:
    """That an EP was named for a model that was not compiled, and has no way to run it."""
    return UsageError(
        f"{provider.name} runs compiled models only",
        where=where,
        why="it has no EPContext node, so all of it would run on the CPU",
        remedy="compile it (`epctx init MODEL` and `epctx build`, or `epctx.compile_model`), and "
        "run what comes out",
    )


def require_some(
    providers: Sequence[ExecutionProvider], taken: Mapping[str, int], where: str, log: Mark
) -> None:
    """Make sure that one at least of the EPs that a caller names runs a part of the model.

    Args:
        taken: how many nodes each EP took, by name.
        log: where what was logged while the session was made begins.

    Raises:
        CompileError: they took nothing.
    """
    if providers and not any(taken.get(provider.name) for provider in providers):
        raise took_nothing(providers[0], where, log.errors())


def require_each(
    providers: Sequence[ExecutionProvider], taken: Mapping[str, int], where: str
) -> None:
    """Make sure that each EP that a caller names runs a part of the model.

    Raises:
        UsageError: one does not, beside others that do.
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
    """That an EP which was named takes no node of a model, and another would run it."""
    remedy = provider.nothing_compiled_remedy()
    if provider.static_shapes:
        remedy += "; it needs static shapes, as `--dimension NAME=SIZE` gives them"
    return CompileError(
        f"{provider.name} takes no node of it",
        where=where,
        why="; ".join(logged[:3]) or f"{DEFAULT_EP} would run all that {provider.name} leaves",
        remedy=remedy,
    )
