"""`python -m epctx.worker`: the process of a worker."""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
import traceback
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder


class _Seldom:
    """Import finder that loads sympy on first use; no stage uses it.

    onnx_ir 1.1 imports sympy for arithmetic on symbolic dimensions. That takes 0.4 s of a worker's
    start, and a build has a worker for each session group.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """Find a module for the import system; None for all other modules."""
        if name not in ("sympy", "onnx_ir._symbolic_shapes"):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec


def main() -> None:
    """Carry out jobs until stdin ends."""
    # Otherwise Python's collector walks all modules again and again during imports.
    gc.set_threshold(10_000)
    from epctx.providers.onnxruntime import supervisor

    supervisor.supervise()  # before a second thread exists, or much memory to copy
    sys.meta_path.insert(0, _Seldom)
    from epctx.worker import listener

    listener.main()


def leave() -> None:
    """Exit like a C program: run the exit handlers of Python and of libraries.

    QNN aborts in its handler if it was interrupted (real-eps.md section 6). This function neither
    tears down Python's modules, which would take as long again, nor waits for other threads, since
    the last answer has been sent.
    """
    if sys.platform != "win32":
        import atexit
        import ctypes

        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        ctypes.CDLL(None).exit(0)


if __name__ == "__main__":
    try:
        main()
        leave()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        # The listening thread holds stdin: the interpreter would abort on its way out.
        os._exit(1)
