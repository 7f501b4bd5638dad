"""Passes by name: the built-in ones, and those of third parties by entry point.

A new pass is a class in a module beside this one and a name in `_BUILT_IN`; if a level runs it, in
`LEVELS`, too. docs/passes.md describes it. This module imports neither onnx nor onnx_ir: the parser
of manifests uses `check`.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING

from msgspec import Struct

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.text import did_you_mean

if TYPE_CHECKING:
    import onnx_ir as ir

    from epctx.graph.passes.scratch import Scratch

GROUP = "epctx.passes"

_BUILT_IN: Mapping[str, str] = {
    "unique-names": "names:UniqueNamesPass",
    "lift-constants": "cleanup:LiftConstantsPass",
    "infer-shapes": "shapes:InferShapesPass",
    "fold-constants": "fold:FoldConstantsPass",
    "fold-float-arithmetic": "fold:FoldFloatArithmeticPass",
    "simplify": "rules:SimplifyPass",
    "resolve-branches": "cleanup:ResolveBranchesPass",
    "split-norms": "ep_forms:SplitNormsPass",
    "slice-gathers": "ep_forms:SliceGathersPass",
    "merge-subexpressions": "duplicates:MergeSubexpressionsPass",
    "merge-initializers": "duplicates:MergeInitializersPass",
    "remove-dead-code": "cleanup:RemoveDeadCodePass",
    "remove-unused-opsets": "cleanup:RemoveUnusedOpsetsPass",
}
_NEED_SCRATCH = frozenset({"fold-constants", "fold-float-arithmetic"})


class Loop(Struct, frozen=True, kw_only=True):
    """Passes that feed each other, repeated until none changes anything.

    Attributes:
        passes: passes that run in turn.
        follow: pass that runs after them if they changed something; if it changes something too,
            they run again.
    """

    passes: tuple[str, ...]
    follow: str


FIRST = "unique-names"
"""Pass that runs before all others, since they may move values between graphs."""


def _level(*folds: str) -> tuple[str | Loop, ...]:
    """Return a level with these folding passes."""
    return (
        "lift-constants",
        Loop(
            passes=(*folds, "simplify", "resolve-branches", "remove-dead-code"),
            follow="infer-shapes",
        ),
        "merge-initializers",
        "merge-subexpressions",
        "remove-dead-code",
        "remove-unused-opsets",
    )


LEVELS: Mapping[str, tuple[str | Loop, ...]] = {
    "none": (),
    "basic": _level("fold-constants"),
    "extended": _level("fold-constants", "fold-float-arithmetic"),
}
"""Passes of each level, in order (design section 7)."""


def steps(wanted: Iterable[str]) -> tuple[str | Loop, ...]:
    """Return the steps of a list of passes and levels, in order."""
    return tuple(step for name in wanted for step in LEVELS.get(name, (name,)))


def is_built_in(name: str) -> bool:
    """Tell whether a pass, or a level, is epctx's own."""
    return name in _BUILT_IN or name in LEVELS


def names() -> tuple[str, ...]:
    """Return the names of all installed passes, built-in ones first."""
    return (*_BUILT_IN, *sorted(set(_third_party()) - set(_BUILT_IN)))


def check(wanted: Iterable[str], *, where: str | None = None) -> None:
    """Raise an error for the first name in `wanted` that is neither a pass nor a level.

    Raises:
        ManifestError: there is no such pass, or two packages have one of this name.
    """
    others = [name for name in wanted if name not in _BUILT_IN and name not in LEVELS]
    third_party = _third_party() if others else {}  # to search the environment takes 10 ms
    for name in others:
        entries = third_party.get(name, ())
        if not entries:
            raise ManifestError(
                f'optimize names the pass "{name}", which does not exist',
                where=where,
                remedy=did_you_mean(name, (*names(), *LEVELS)),
                code=Code.NO_SUCH_PASS,
            )
        if len(entries) > 1:
            packages = " and ".join(sorted(package_of(each) for each in entries))
            raise ManifestError(
                f'optimize names the pass "{name}", which {packages} both have',
                where=where,
                remedy="uninstall one of them",
                code=Code.NO_SUCH_PASS,
            )


def create(name: str, scratch: Scratch) -> ir.passes.InPlacePass:
    """Make a pass.

    Raises:
        ManifestError: there is no such pass, two packages have it, or its package cannot be loaded.
    """
    check((name,))
    if name not in _BUILT_IN:
        return _load(_third_party()[name][0])
    module, _, attribute = _BUILT_IN[name].partition(":")
    factory = getattr(importlib.import_module(f"epctx.graph.passes.{module}"), attribute)
    graph_pass: ir.passes.InPlacePass = factory(scratch) if name in _NEED_SCRATCH else factory()
    return graph_pass


def of_others(wanted: Iterable[str]) -> Mapping[str, EntryPoint]:
    """Return the third-party passes in `wanted`, with their entry points.

    Raises:
        ManifestError: there is no such pass, or two packages have it.
    """
    chosen = [name for name in wanted if name not in _BUILT_IN and name not in LEVELS]
    check(chosen)
    third_party = _third_party() if chosen else {}
    return {name: third_party[name][0] for name in chosen}


def foreign(wanted: Iterable[str]) -> bool:
    """Tell whether a pass in `wanted` is a third party's."""
    return any(name not in _BUILT_IN and name not in LEVELS for name in wanted)


def owner(name: str) -> str | None:
    """Return the package of a third-party pass, with its version; None for a built-in pass."""
    entries = () if name in _BUILT_IN else _third_party().get(name, ())
    return package_of(entries[0]) if entries else None


def _third_party() -> Mapping[str, Sequence[EntryPoint]]:
    by_name: dict[str, list[EntryPoint]] = {}
    for entry in entry_points(group=GROUP):
        by_name.setdefault(entry.name, []).append(entry)
    return by_name


def package_of(entry: EntryPoint) -> str:
    """Return the distribution of an entry point, with its version."""
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else entry.value


def _load(entry: EntryPoint) -> ir.passes.InPlacePass:
    import onnx_ir as ir

    where = f"optimize pass {entry.name}"
    try:
        graph_pass = entry.load()()
    except Exception as error:  # third-party code may raise anything; the package is named
        raise ManifestError(
            f"the package {package_of(entry)} cannot make the pass",
            where=where,
            why=f"{type(error).__name__}: {error}",
            remedy="repair or reinstall that package, or take the pass out of `optimize`",
        ) from error
    if not isinstance(graph_pass, ir.passes.InPlacePass):
        raise ManifestError(
            f"the package {package_of(entry)} makes a {type(graph_pass).__name__}, not a pass",
            where=where,
            why="a pass must be an onnx_ir.passes.InPlacePass",
            remedy="report it to the package, or take the pass out of `optimize`",
        )
    return graph_pass
