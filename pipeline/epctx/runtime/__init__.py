"""Running EPContext models (design section 11).

session.py      `InferenceSession`, whose API is onnxruntime's
options.py      session options; sources.py: from a path or from bytes
selection.py    which EP takes which node; loading.py: the model made ready to run
cutting.py      kernels, and models of what lies between them; steps.py: running them
workspace.py    contexts shared by the sessions of a process
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx.runtime.session import InferenceSession

__all__ = ["InferenceSession", "release_shared_contexts"]


def __getattr__(name: str) -> object:
    if name == "InferenceSession":  # imports onnxruntime
        return importlib.import_module("epctx.runtime.session").InferenceSession
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def release_shared_contexts() -> None:
    """Let go of graphs that sessions with `ep.share_ep_contexts` left for others to come."""
    from epctx.runtime.workspace import SHARED

    SHARED.clear()
