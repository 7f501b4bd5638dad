"""Subjects of the checks of one model, and the faults that the checks find."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from msgspec import Struct

from epctx.providers.base import Outcome
from epctx.verification.findings import REBUILD
from epctx.verification.folder import ContextModel, GroupFolder


class Fault(Struct, frozen=True, kw_only=True):
    """Fault of a model; or a check that could not be made, and why."""

    message: str
    remedy: str = REBUILD
    outcome: Outcome = "fail"


class Subject(Struct, frozen=True, kw_only=True):
    """A model, whole and in short, in its folder."""

    folder: GroupFolder
    model: ContextModel
    proto: onnx.ModelProto


Check = Callable[[Subject], Iterator[Fault]]
"""Yields what is wrong; a model of which it yields nothing has passed."""
