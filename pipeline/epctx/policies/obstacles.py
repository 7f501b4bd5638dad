"""What keeps this host from loading a model, as far as its EPs can tell before it is tried."""

from __future__ import annotations

from epctx.errors import EpctxError
from epctx.policies.folder import ContextModel, GroupFolder
from epctx.policies.tasks import words
from epctx.providers import hooks


def obstacle(folder: GroupFolder, model: ContextModel, *, sharing: bool) -> tuple[str, str] | None:
    """Why a model cannot be loaded here, and what to do; None: it may be tried.

    Args:
        sharing: its context is others' too.
    """
    for source in model.sources:
        provider = folder.providers.find(source)
        if provider is None:
            return f"no EP here is known by the source '{source}'", folder.providers.why_not(source)
        if not isinstance(provider, hooks.KnowsHost):
            continue
        own = [node for node in model.nodes if node.source == source]
        try:
            reason = provider.cannot_load(own, folder.path, sharing=sharing)
        except EpctxError as error:
            return words(error), error.remedy
        if reason is not None:
            return reason, "verify it on the device"
    return None
