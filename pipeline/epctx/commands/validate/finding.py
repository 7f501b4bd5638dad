"""What is found in a manifest that breaks neither schema nor rules."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from epctx.errors import EpctxError
from epctx.parsing.document.problems import Problem
from epctx.parsing.document.tree import Node


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
    """What a build would raise, at the value or key that it comes of.

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
