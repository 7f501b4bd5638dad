"""`python -m epctx.worker`: a worker's process. Nothing is imported before it may be sampled."""

from __future__ import annotations

import os
import sys
import traceback


def main() -> None:
    """Carry out jobs until stdin ends."""
    samples = os.environ.pop("EPCTX_SAMPLES", None)
    if samples is not None:
        from epctx.worker import sampling

        sampling.start(samples, "worker")
    from epctx.providers.onnxruntime import supervisor

    supervisor.supervise()  # before there is a second thread, or much that would be copied
    from epctx.worker import listener

    listener.main()
    if samples is not None:
        sampling.end()


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
