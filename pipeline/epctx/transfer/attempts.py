"""Attempts: what may be better the next time is asked for again, later and later."""

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
    """A store did not do what was asked: absent, slow, full, forbidding, or answering nonsense.

    Its text is one clause for people, without credentials. Of a shared cache it never ends a build.

    Attributes:
        lasting: it will be the same for whatever else is asked, as with a wrong password.
    """

    def __init__(self, text: str, *, lasting: bool = False) -> None:
        super().__init__(text)
        self.lasting = lasting


class Passing(StoreError):
    """What may be better the next time.

    Attributes:
        after: the seconds after which the store wants to be asked again.
    """

    def __init__(self, text: str, *, after: float = 0) -> None:
        super().__init__(text)
        self.after = after


def seconds_for(size: int) -> float:
    """How long one attempt at so many bytes may last, however steadily they come."""
    return limits.REMOTE_SECONDS.value + size / _PACE


def repeatedly(call: Callable[[], _T]) -> _T:
    """What a call gives, which is tried again where that may help. Raises StoreError."""
    for attempt in range(1, limits.REMOTE_ATTEMPTS.value):
        try:
            return call()
        except Passing as error:
            _pause(attempt, error)
    return call()


def exactly(pieces: Iterable[bytes], size: int) -> Iterator[bytes]:
    """Pieces of `size` bytes in all.

    Raises:
        Passing: there are less.
        StoreError: there are more, of which no more is taken.
    """
    left = size
    for piece in pieces:
        left -= len(piece)
        if left < 0:
            raise StoreError(f"it sends more than the {size:,} bytes that there are")
        yield piece
    if left:
        raise Passing(f"it sends {size - left:,} of the {size:,} bytes that there are")


def resumed(pieces: Callable[[int], Iterable[bytes]], size: int) -> Iterator[bytes]:
    """`size` bytes in pieces, asked for again from where they broke.

    Args:
        pieces: those from some byte on; `Passing` where they break.

    Raises:
        StoreError: there are more, or no attempt brought the rest.
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
    """Wait as the store asks, at least twice as long as the last time, and not as all others do.

    Raises:
        Passing: it asks for too long a wait.
    """
    if error.after > limits.REMOTE_WAIT_SECONDS.value:
        raise error
    longest = min(_FIRST_PAUSE * 2**attempt, _LONGEST_PAUSE)
    time.sleep(max(error.after, random.uniform(longest / 2, longest)))
