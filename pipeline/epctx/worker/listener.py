"""Main loop of a worker process: read jobs from stdin until it ends.

Jobs come from a copy of stdin, and answers go to a copy of stdout, one JSON line each. stdin itself
becomes empty and stdout the log, since vendor SDKs use both. The worker always dies with its
parent: its supervisor ends it; without a supervisor it notices that stdin ends.
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import threading
import time
from typing import BinaryIO

import msgspec

from epctx import codec
from epctx.actions import action
from epctx.actions.action import StageStarted
from epctx.graph import native
from epctx.worker import protocol
from epctx.worker.protocol import Message


def main() -> None:
    """Read jobs and run them, in a process that is supervised already."""
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # a library may read it, or close it
    logging.getLogger("epctx").addHandler(logging.StreamHandler())
    if "FAKETIME" in os.environ:
        _sleep_by_waiting()
    # Ctrl-C in a terminal reaches the whole group; the parent decides what ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    jobs: queue.Queue[bytes | None] = queue.Queue()
    busy = threading.Event()
    threading.Thread(target=_listen, args=(requests, jobs, busy), daemon=True).start()

    def send(message: Message) -> None:
        answers.write(msgspec.json.encode(message) + b"\n")

    def started(stage: StageStarted) -> None:
        send(Message(started=msgspec.Raw(codec.encode(stage))))

    def watch(allowance: native.Allowance | None) -> None:
        send(Message(native=msgspec.Raw(codec.encode(allowance))))

    while (line := jobs.get()) is not None:
        message = msgspec.json.decode(line, type=Message)
        busy.set()
        try:
            with native.watched(watch):
                for result in action.carry_out(protocol.actions(message), started):
                    send(Message(result=msgspec.Raw(codec.encode(result))))
            answer = Message(done=action.peak_memory())
        except Exception as error:
            answer = Message(error=protocol.report(error))
        busy.clear()
        send(answer)


def _sleep_by_waiting() -> None:
    """Replace `time.sleep`, which fails under libfaketime 0.9.10, as `epctx reproduce` uses it."""
    vars(time)["sleep"] = lambda seconds: threading.Event().wait(seconds)


def _listen(requests: BinaryIO, jobs: queue.Queue[bytes | None], busy: threading.Event) -> None:
    try:
        for line in requests:
            jobs.put(line)
    finally:  # also if a library has closed the descriptor
        if busy.is_set():
            # The parent is gone during a job: nobody needs its result.
            os._exit(1)
        jobs.put(None)
