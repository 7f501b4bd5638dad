"""Running EPContext models.

session.py      `Session`, whose API is onnxruntime's; `InferenceSession`, which people import from
                here, is in commands/compile_model: it compiles first, where that is asked
options.py      session options; model_source.py: from a path or from bytes
selection.py    which EP takes which node; loading.py: the model made ready to run
split.py        kernels, and models of what lies between them; steps.py: running them
workspace.py    contexts shared by the sessions of a process
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from epctx.runtime.workspace import release_shared_contexts

if TYPE_CHECKING:
    from epctx.commands.compile_model.session import InferenceSession

__all__ = ["InferenceSession", "release_shared_contexts"]

_HOMES = {
    "InferenceSession": "epctx.commands.compile_model.session",
    "release_shared_contexts": "epctx.runtime.workspace",
}


def __getattr__(name: str) -> object:
    if name in _HOMES:  # a session imports onnxruntime
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
