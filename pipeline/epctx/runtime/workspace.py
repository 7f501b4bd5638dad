"""The process's shared workspace: EP contexts of sessions with `ep.share_ep_contexts`."""

from __future__ import annotations

from epctx.providers.base import SharedContexts

SHARED = SharedContexts()
"""The one of this process."""


def release_shared_contexts() -> None:
    """Let go of graphs that sessions with `ep.share_ep_contexts` left for others to come."""
    SHARED.clear()
