"""Modules that are imported when something of them is used, not when they are named.

onnx_ir imports sympy for arithmetic on symbolic dimensions, which no stage does: that is half of a
worker's start, of which a build has one for each session group.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Final

SELDOM: Final = (
    *("sympy", "onnx_ir._symbolic_shapes"),
    *("google.protobuf.json_format", "google.protobuf.text_format"),
    *("argparse", "tarfile", "importlib.metadata._adapters"),
)
"""What of onnx_ir 1.1 needs sympy when it is imported, and sympy; what onnx has for models that are
text, for its hub and its own build; what reads a package's description, which takes email."""

ARRAYS: Final = ("onnx.compose", "onnx.helper", "onnx.numpy_helper", "onnx.utils")
"""What of onnx imports numpy: for a process of one thread that reads headers."""


def defer(names: Iterable[str]) -> None:
    """Let modules be imported at the first use of an attribute, in this process from now on.

    A module that is imported already stays as it is, and one that is not installed is missing as
    ever. Threads must not be the first to use one at the same time (Python 3.11 and 3.12).
    """
    deferring = _Deferring(frozenset(names))
    if deferring not in sys.meta_path:
        sys.meta_path.insert(0, deferring)


def ahead(name: str) -> None:
    """Import a module in a thread, while native code does the work that comes first."""
    threading.Thread(target=importlib.import_module, args=(name,), daemon=True).start()


@dataclass(frozen=True)
class _Deferring:
    """Finds what the finders after it do, and gives it the standard library's lazy loader."""

    names: frozenset[str]

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """As the import system asks. None: not one of those."""
        if name not in self.names:
            return None
        others = [finder for finder in sys.meta_path if finder is not self]
        for finder in others:
            found = finder.find_spec(name, path, target)
            if found is not None:
                if found.loader is not None:
                    found.loader = importlib.util.LazyLoader(found.loader)
                return found
        return None
