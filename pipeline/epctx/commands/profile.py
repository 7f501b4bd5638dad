"""Where the time of a build went, of the samples of its processes: a trace, and a table.

The trace is in the Trace Event Format, which https://ui.perfetto.dev and `chrome://tracing` open.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from epctx.files import atomic
from epctx.worker.sampling import INTERVAL, Stack

_KINDS: Final = (
    ("importlib", "imports"),
    ("subprocess.py:_execute_child", "starting processes"),
    ("epctx/files/hashing.py", "hashing"),
    ("epctx/files/copying.py", "copying"),
    ("sync", "syncing"),
    ("queue.py:get", "waiting"),
    ("threading.py:wait", "waiting"),
    ("concurrent/futures", "waiting"),
    ("onnxruntime/capi", "ONNX Runtime, EPs"),
)
"""What a stack is about that has a function of this path and name; the innermost one decides."""


class Spent(Struct, frozen=True, kw_only=True):
    """What a process did with its time.

    Attributes:
        process: what it is called.
        seconds: from its beginning to its last sample.
        on: seconds that its main thread spent, by kind of work; kinds that took none are missing.
    """

    process: str
    seconds: float
    on: Mapping[str, float]


class _Sampled(Struct, frozen=True):
    """A process. `changes`: when, of which thread, to what stack."""

    name: str
    pid: int
    born: float
    begun: float
    main: int
    changes: list[tuple[float, int, Stack]]

    @classmethod
    def read(cls, file: Path) -> _Sampled:
        lines = (json.loads(line) for line in file.read_text(encoding="utf-8").splitlines())
        name, pid, born, begun, main = next(lines)
        changes = [(at, thread, tuple(stack)) for at, thread, stack in lines]
        return cls(name, pid, born, begun, main, changes)

    def spans(self) -> Iterator[tuple[float, float, int, Stack]]:
        """From when to when each thread had each stack."""
        last: dict[int, tuple[float, Stack]] = {}
        end = self.begun
        for at, thread, stack in self.changes:
            if thread in last:
                yield last[thread][0], at, thread, last[thread][1]
            last[thread] = at, stack
            end = max(end, at)
        for thread, (since, stack) in last.items():
            yield since, end + INTERVAL, thread, stack


def write(samples: Path, path: Path) -> list[Spent]:
    """Write the trace of a build, and say what its processes did, the first first.

    Args:
        samples: the folder of `sampling.folder`.
        path: is replaced.

    Raises:
        StorageError: it cannot be written.
    """
    found = [_Sampled.read(file) for file in samples.glob("*.jsonl")]
    found.sort(key=lambda process: process.born)
    events = [event for process in found for event in _events(process)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms"}
    atomic.replace(path, json.dumps(trace).encode())
    return [_spent(process) for process in found]


def _spent(process: _Sampled) -> Spent:
    on = defaultdict[str, float](float, interpreter=process.begun - process.born)
    end = process.begun
    for since, until, thread, stack in process.spans():
        if thread == process.main and stack:
            on[_kind(stack)] += until - since
            end = max(end, until)
    most = sorted(on.items(), key=lambda spent: -spent[1])
    return Spent(process=process.name, seconds=end - process.born, on=dict(most))


def _kind(stack: Stack) -> str:
    for function in reversed(stack):
        for part, kind in _KINDS:
            if part in function:
                return kind
    return "else"


def _events(process: _Sampled) -> Iterator[dict[str, Any]]:
    """A process, its threads and, one in the other, the functions that were on their stacks."""
    yield _event("process_name", process, process.main, ph="M", args={"name": process.name})
    yield _lasting("interpreter", process, process.main, process.born, process.begun)
    entered: dict[int, list[tuple[str, float]]] = {}
    spans = sorted(process.spans(), key=lambda span: span[0])
    for since, _, thread, stack in spans:
        open_ = entered.setdefault(thread, [])
        same = _common(open_, stack)
        yield from _left(process, thread, open_, same, since)
        open_.extend((function, since) for function in stack[same:])
    for thread, open_ in entered.items():
        end = max(until for _, until, of, _ in spans if of == thread)
        yield from _left(process, thread, open_, 0, end)


def _common(entered: list[tuple[str, float]], stack: Stack) -> int:
    """How many functions, from the outermost one on, are open already."""
    pairs = zip(entered, stack, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0][0] == pair[1], pairs))


def _left(
    process: _Sampled, thread: int, entered: list[tuple[str, float]], keep: int, now: float
) -> Iterator[dict[str, Any]]:
    while len(entered) > keep:
        function, since = entered.pop()
        yield _lasting(function, process, thread, since, now)


def _lasting(
    name: str, process: _Sampled, thread: int, since: float, until: float
) -> dict[str, Any]:
    return _event(name, process, thread, ph="X", ts=since * 1e6, dur=(until - since) * 1e6)


def _event(name: str, process: _Sampled, thread: int, **rest: Any) -> dict[str, Any]:
    return {"name": name, "pid": process.pid, "tid": thread, **rest}
