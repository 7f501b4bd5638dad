"""Native work of libraries on a model, and its limits.

Inference by onnx or ONNX Runtime may take any amount of memory or time, or end the process, even
for a model of a few bytes. A process cannot bound such a call from within. So each call is
announced, with its limits, to the process that watches this one. A process without a watcher has no
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import Final, Literal, TypeVar

from msgspec import Struct

from epctx import limits

T = TypeVar("T")
Work = Literal["onnx's checker", "onnx's shape inference", "ONNX Runtime"]
"""Name of the library code at work, for messages."""
Reach = Literal["data", "types", "nothing"]
"""Extent of inference. `data`: types and shapes, also those that follow from data. `types`: types
and shapes without data. `nothing`: only the declared shapes are known.
"""
REACHES: Final[tuple[Reach, ...]] = ("data", "types", "nothing")

MEMORY_FACTOR: Final = 256
"""Bytes of memory that are allowed for each byte of a model without its weights. Inference takes 90
of them, ONNX Runtime 80 (onnx 1.23.2, onnxruntime 1.31.1, a chain of 400,000 nodes).
"""
SIZE_A_SECOND: Final = 1 << 16
"""Bytes of a model, without its weights, that raise the limit by a second. Inference goes through
900,000 in a second, ONNX Runtime through 400,000 (same model).
"""


class Allowance(Struct, frozen=True, kw_only=True):
    """Limits of a piece of work.

    Attributes:
        memory: the process's own bytes, without mapped files.
        seconds: processor time from the beginning of the work.
    """

    work: Work
    memory: int
    seconds: int


Watch = Callable[[Allowance | None], None]
"""Receives the limits of a piece of work when it begins, and None when it ends."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_reach: ContextVar[Reach] = ContextVar("reach", default="data")


def watched(watch: Watch) -> AbstractContextManager[None]:
    """Announce all native work in the body to `watch`."""
    return _with(_watch, watch)


@contextmanager
def allowed(work: Work, size: int) -> Iterator[None]:
    """Announce the body as native work on a model of `size` bytes, mapped weights not counted."""
    watch = _watch.get()
    if watch is None:
        yield
        return
    watch(
        Allowance(
            work=work,
            memory=limits.NATIVE_MEMORY.value + MEMORY_FACTOR * size,
            seconds=limits.NATIVE_SECONDS.value + size // SIZE_A_SECOND,
        )
    )
    try:
        yield
    finally:
        watch(None)


def inferring(reach: Reach) -> AbstractContextManager[None]:
    """Limit inference in the body to this extent."""
    return _with(_reach, reach)


def reach() -> Reach:
    """Return the extent of inference here."""
    return _reach.get()


@contextmanager
def _with(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
