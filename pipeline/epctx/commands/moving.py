"""Transfer of files to and from a registry, several at a time, with progress."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Final, TypeVar

from epctx.engine.events import Event, Listener
from epctx.oci.artifact import Blob
from epctx.text import size_words
from epctx.transfer.attempts import StoreError

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")
_AT_A_TIME: Final = 4
_PAUSE: Final = 0.5
"""Seconds between two progress reports of one file."""


class Moving:
    """Progress of files in transfer. Thread-safe.

    Args:
        name: subject of the events.
        stage: `push` or `pull`.
    """

    def __init__(self, name: str, stage: str, listener: Listener) -> None:
        self._name, self._stage, self._listener = name, stage, listener
        self._lock = threading.Lock()
        self._over = threading.Event()

    def each(
        self, work: Callable[[_Item], _Result], items: Iterable[_Item]
    ) -> dict[_Item, _Result]:
        """Return the result of `work` per item. A failure stops the others at their next piece.

        Raises the first exception of `work`.
        """
        with ThreadPoolExecutor(_AT_A_TIME, thread_name_prefix=f"epctx-{self._stage}") as threads:
            futures = {threads.submit(work, item): item for item in items}
            try:
                return {futures[each]: each.result() for each in as_completed(futures)}
            except BaseException:
                self._over.set()
                threads.shutdown(wait=False, cancel_futures=True)
                raise

    def begin(self, path: str, blob: Blob) -> Callable[[int], None]:
        """Report that a file starts to move; return a callback for the number of bytes.

        The callback raises StoreError after another file has failed.
        """
        last_report = 0.0
        self._report(path, f"0 of {size_words(blob.size)}")

        def moved(done: int) -> None:
            nonlocal last_report
            if self._over.is_set():
                raise StoreError("another file failed")
            if done >= blob.size:
                self._report(path, None)
            elif time.monotonic() - last_report > _PAUSE:
                last_report = time.monotonic()
                self._report(path, f"{size_words(done)} of {size_words(blob.size)}")

        return moved

    def _report(self, path: str, detail: str | None) -> None:
        """Report the progress of a file; `detail` is None when it is done."""
        event = Event(
            group=self._name,
            subject=path,
            state="done" if detail is None else "running",
            stage=None if detail is None else self._stage,
            detail=detail,
        )
        with self._lock:
            self._listener(event)
