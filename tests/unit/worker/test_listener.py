"""The process of a worker, with jobs whose only effect is on the process."""

from __future__ import annotations

import subprocess
import sys

import msgspec

from epctx.worker.protocol import Message

CLOSING = """
import contextlib, os
from epctx.actions import action
from epctx.worker import listener

def carry_out(job, started):
    with contextlib.suppress(OSError):
        os.close(0)
    return iter(())

action.carry_out = carry_out
listener.main()
"""


def test_a_library_may_close_stdin() -> None:
    """As daemons do; jobs go on, and the end of stdin still ends the process."""
    process = subprocess.Popen(
        [sys.executable, "-c", CLOSING], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    with process:
        for _ in range(3):
            process.stdin.write(msgspec.json.encode(Message()) + b"\n")
            process.stdin.flush()
            assert msgspec.json.decode(process.stdout.readline(), type=Message).done
        process.stdin.close()
        assert process.wait(timeout=300) == 0
