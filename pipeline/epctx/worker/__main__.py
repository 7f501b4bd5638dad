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
    """Finds sympy, which is then imported when something of it is used; no stage uses it.

    onnx_ir 1.1 imports it for arithmetic on symbolic dimensions, and a module that needs it at
    once: 0.4 s of a worker's start, and a build has a worker for each session group.
    """

    @staticmethod
    def find_spec(
        name: str, path: Sequence[str] | None = None, target: object = None
    ) -> ModuleSpec | None:
        """As the import system asks. None: another module."""
        if name not in ("sympy", "onnx_ir._symbolic_shapes"):
            return None
        found = PathFinder.find_spec(name, path)
        if found is not None and found.loader is not None:
            found.loader = importlib.util.LazyLoader(found.loader)
        return found


def main() -> None:
    """Carry out jobs until stdin ends."""
    # Else Python's collector walks all modules again and again while they are imported.
    gc.set_threshold(10_000)
    from epctx.providers.onnxruntime import supervisor

    supervisor.supervise()  # before there is a second thread, or much that would be copied
    sys.meta_path.insert(0, _Seldom)
    from epctx.worker import listener

    listener.main()


def leave() -> None:
    """End as a program in C does: what libraries have registered runs, and QNN aborts there if it
    was left in the middle (real-eps.md section 6). What is registered with Python runs before, too;
    but its modules are not taken apart, which takes as long as all of that, and no thread of others
    is waited for: the last answer has been given.
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
