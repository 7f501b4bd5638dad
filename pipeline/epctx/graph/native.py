"""Native work of libraries on a model, and its limits.

For a model of a few bytes onnx's inference and ONNX Runtime's may take any memory or time, or end
the process. No such call can be bounded from within. So each is announced to the process that
watches this one, with its limits; without a watcher it has none.
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
"""Extent of inference: types and shapes, also those that follow from data; types and shapes without
data; nothing, so that only the declared shapes are known."""
REACHES: Final[tuple[Reach, ...]] = ("data", "types", "nothing")

MEMORY_FACTOR: Final = 256
"""Bytes of memory for each byte of a model without its weights. Inference takes 90 of them, ONNX
Runtime 80 (onnx 1.23.2, onnxruntime 1.31.1, a chain of 400,000 nodes)."""
SIZE_A_SECOND: Final = 1 << 16
"""Bytes of a model without its weights that another second is for. Inference goes through 900,000
in a second, ONNX Runtime through 400,000 (same model)."""


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
