"""The process's shared workspace: EP contexts of sessions with `ep.share_ep_contexts`.

Source: the EPContext design, "Implementation Guidelines for Inferencing from EPContext Models
with Weight Sharing". A graph is in at most one place: here, or in the session that took it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class SharedWorkspace:
    """`SharedContexts` of providers.base, for all threads of a process.

    Graphs stay until a session takes them, also when the session that read them is gone: they hold
    a mapped file, not memory. `clear`, or a session with `ep.stop_share_ep_contexts`, lets go.
    """

    def __init__(self) -> None:
        self._loading = threading.RLock()
        self._graphs: dict[str, object] = {}

    @contextmanager
    def session(self, *, last: bool) -> Iterator[SharedWorkspace]:
        """One session loads: others wait. The last one clears the workspace, whatever happens."""
        with self._loading:
            try:
                yield self
            finally:
                if last:
                    self.clear()

    def take(self, key: str) -> object | None:
        """Move a graph out; None: it is not here."""
        with self._loading:
            return self._graphs.pop(key, None)

    def leave(self, key: str, graph: object) -> None:
        """Put a graph here; one that is here already stays."""
        with self._loading:
            self._graphs.setdefault(key, graph)

    def clear(self) -> None:
        """Forget all graphs, and let their files go."""
        with self._loading:
            self._graphs.clear()

    def __len__(self) -> int:
        return len(self._graphs)


SHARED = SharedWorkspace()
"""The one of this process."""


def release_shared_contexts() -> None:
    """Let go of graphs that sessions with `ep.share_ep_contexts` left for others to come."""
    SHARED.clear()
