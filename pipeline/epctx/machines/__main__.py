"""`python -m epctx.machines`: a worker that a build starts on its machine, and that ends with it.

What it is told comes as one line of JSON on stdin, whose end is its end.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from epctx.providers.onnxruntime import supervisor


def main() -> None:
    """Serve until stdin ends."""
    supervisor.supervise()  # before there is a second thread
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # in a terminal it reaches the build, too

    from epctx import codec
    from epctx.machines import blobs, serving
    from epctx.machines.local import Start, security

    start = codec.decode(sys.stdin.buffer.readline(), Start)

    def follow() -> None:
        os.read(0, 1)
        os._exit(0)

    threading.Thread(target=follow, daemon=True).start()
    serving.serve(
        start.contact,
        security(start),
        blobs.at(start.blobs),
        name=start.name,
        jobs=start.jobs,
        once=True,
    )


if __name__ == "__main__":
    main()
