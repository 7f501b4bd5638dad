"""What the environment's variables ask of every command: checked before a command begins."""

from __future__ import annotations

import os

from epctx import limits

_HIDE = "EPCTX_HIDE_DEVICES"


def check() -> None:
    """Limits are limits, and what is to be hidden can be hidden.

    Raises:
        UsageError: a variable says what cannot be done.
    """
    limits.check()
    if os.environ.get(_HIDE):  # else no provider is imported for it
        from epctx.providers import registry

        registry.check_hidden()
