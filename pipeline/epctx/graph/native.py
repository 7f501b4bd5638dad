"""Native work of libraries on a model, and its limits.

Inference by onnx or ONNX Runtime may take any amount of memory or time, or end the process, even
for a model of a few bytes. A process cannot bound such a call from within. So each call is
announced, with its limits, to the process that watches this one. A process without a watcher has no
limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar

from msgspec import Struct

from epctx import limits
from epctx.errors import ModelError

if TYPE_CHECKING:
    import onnxruntime as ort

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


_libraries: tuple[Path, ...] = ()
"""Libraries of custom operators that the models of this process's job need, in every thread."""


def use_libraries(libraries: Iterable[Path]) -> None:
    """Use these libraries of custom operators in sessions from now on, and no others."""
    global _libraries
    _libraries = tuple(dict.fromkeys(libraries))


def session_options() -> ort.SessionOptions:
    """Return new options of a session, with the libraries of custom operators.

    Raises:
        ModelError: ONNX Runtime does not take a library.
    """
    import onnxruntime as ort

    options = ort.SessionOptions()
    for library in _libraries:
        try:
            options.register_custom_ops_library(str(library))
        except Exception as error:  # onnxruntime's errors have no common class
            raise ModelError(
                "is not a library of custom operators that ONNX Runtime can load",
                file=str(library),
                why=" ".join(str(error).rpartition(" : ")[2].split()),
                remedy="name a library for this system that exports RegisterCustomOps in "
                "`custom_ops` of the model",
            ) from error
    return options


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
