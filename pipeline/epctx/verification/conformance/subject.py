"""What the checks of one model look at, and how they say what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx
from msgspec import Struct

from epctx.providers.base import Outcome
from epctx.verification.findings import REBUILD
from epctx.verification.folder import ContextModel, GroupFolder


class Fault(Struct, frozen=True, kw_only=True):
    """What is wrong with a model; or what could not be checked, and then why."""

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
