"""Whoever writes an action lists it, or no worker carries it out."""

from __future__ import annotations

import importlib
import pkgutil

import epctx.actions
from epctx.actions.action import Action
from epctx.actions.kinds import KINDS


def test_every_action_is_there() -> None:
    for module in pkgutil.iter_modules(epctx.actions.__path__):
        importlib.import_module(f"epctx.actions.{module.name}")
    written = {c for c in Action.__subclasses__() if c.__module__.startswith("epctx.actions.")}
    assert written == set(KINDS.values()) and len(KINDS) >= 10
    assert all({"run", "result"} <= vars(kind).keys() for kind in written)
