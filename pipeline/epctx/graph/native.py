"""Work on a model that native code of a library does, and what it may take.

For a model of a few bytes onnx's inference and ONNX Runtime's may take any memory or time, or end
the process. No call of theirs can be bounded from within, so each is announced to whoever watches
this process, with what it may take; where nobody watches it takes what it takes.
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
"""What is at work, as messages name it."""
Reach = Literal["data", "types", "nothing"]
"""What is inferred of a model: types and shapes, also those that follow from data; types and shapes
without data; nothing, so that what the file declares is all that is known."""
REACHES: Final[tuple[Reach, ...]] = ("data", "types", "nothing")

MEMORY_FACTOR: Final = 256
"""Bytes of memory for each byte of a model without its weights. Inference takes 90 of them, ONNX
Runtime 80 (onnx 1.23.2, onnxruntime 1.31.1, a chain of 400,000 nodes)."""
SIZE_A_SECOND: Final = 1 << 16
"""Bytes of a model without its weights that another second is for. Inference goes through 900,000
in a second, ONNX Runtime through 400,000 (same model)."""


class Allowance(Struct, frozen=True, kw_only=True):
    """What a piece of work may take.

    Attributes:
        memory: in bytes, of the process's own, mapped files apart.
        seconds: of processor time, from its beginning.
    """

    work: Work
    memory: int
    seconds: int


Watch = Callable[[Allowance | None], None]
"""Hears of a piece of work when it begins, and None when it has ended."""

_watch: ContextVar[Watch | None] = ContextVar("watch", default=None)
_reach: ContextVar[Reach] = ContextVar("reach", default="data")


def watched(watch: Watch) -> AbstractContextManager[None]:
    """Let `watch` hear of all native work in the body."""
    return _with(_watch, watch)


@contextmanager
def allowed(work: Work, size: int) -> Iterator[None]:
    """The body is a piece of native work on a model of `size` bytes, without the weights that it
    maps.
    """
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
    """Let inference in the body go so far and no further."""
    return _with(_reach, reach)


def reach() -> Reach:
    """How far inference may go here."""
    return _reach.get()


@contextmanager
def _with(variable: ContextVar[T], value: T) -> Iterator[None]:
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
