"""Repeated attempts at requests that may work the next time, with growing pauses."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

from epctx import limits

_T = TypeVar("_T")
_PROGRESS: Final = 1 << 20
_PACE: Final = 1 << 14
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 5.0


class StoreError(Exception):
    """A store failed a request: it is absent, slow or full, forbids it, or its answer is invalid.

    The text is one clause without credentials. An error of a shared cache never ends a build.

    Attributes:
        lasting: every other request would fail, too, for example with a wrong password.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Passing(StoreError):
    """A failure that may not happen the next time.

    Attributes:
        after: seconds that the store asks to wait before the next request.
    """

    def __init__(self, text: str, *, after: float = 0) -> None:
        super().__init__(text)
        self.after = after


def seconds_for(size: int) -> float:
    """Return the seconds that one attempt at `size` bytes may take, even if bytes keep coming."""
    return limits.REMOTE_SECONDS.value + size / _PACE


def repeatedly(call: Callable[[], _T]) -> _T:
    """Call a function again while it raises Passing, up to a limit. Raises StoreError."""
    for attempt in range(1, limits.REMOTE_ATTEMPTS.value):
        try:
            return call()
        except Passing as error:
            _pause(attempt, error)
    return call()


def exactly(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Yield pieces, and check that they have `size` bytes together.

    Raises:
        Passing: they have fewer bytes.
        StoreError: they have more bytes; the rest is not read.
    """
    remaining = size
    for piece in pieces:
        remaining -= len(piece)
        if remaining < 0:
            raise StoreError(f"it sends more than the expected {size:,} bytes")
        yield piece
    if remaining:
        raise Passing(f"it sends only {size - remaining:,} of {size:,} bytes")


def resumed(pieces: Callable[[int], Iterable[bytes]], size: int) -> Iterator[bytes]:
    """Yield `size` bytes in pieces; after an interruption, request the rest again.

    Args:
        pieces: requests the pieces from a byte on; they raise Passing if they are interrupted.

    Raises:
        StoreError: there are more bytes, or no attempt delivered the rest.
    """
    done, failed = 0, 0
    while True:
        began = done
        try:
            for piece in exactly(pieces(done), size - done):
                done += len(piece)
                yield piece
            return
        except Passing as error:
            if done == size:
                return
            failed = 1 if done - began >= _PROGRESS else failed + 1
            if failed >= limits.REMOTE_ATTEMPTS.value:
                raise
            _pause(failed, error)


def _pause(attempt: int, error: Passing) -> None:
    """Wait as long as the store asks, or a random time that doubles with each attempt.

    Raises:
        Passing: the store asks for too long a wait.
    """
    if error.after > limits.REMOTE_WAIT_SECONDS.value:
        raise error
    longest = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    time.sleep(max(error.after, random.uniform(longest / 2, longest)))
