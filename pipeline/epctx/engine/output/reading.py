"""Reading what is published while no build exchanges it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from epctx.engine.output.place import acquired
from epctx.files import entries, listing

if sys.platform != "win32":
    import fcntl


@contextmanager
def undisturbed(paths: Iterable[Path], waiting: Callable[[], None]) -> Iterator[None]:
    """Keep builds from exchanging outputs at, below or around the paths; readers share.

    Where the lock of outputs is not there, as in a copy of them, or may not be used, nothing is
    kept: nobody builds there, or nobody of this user.

    Args:
        waiting: called once for each output that a build holds.
    """
    with ExitStack() as held:
        for lock in sorted({lock for path in paths for lock in _locks(path.resolve())}):
            held.enter_context(_shared(lock, waiting))
        yield


def _locks(path: Path) -> Iterator[Path]:
    """The locks `.<name>.lock` of outputs `<name>`, beside which the package and the rest are."""
    for folder in path.parents:
        words = path.relative_to(folder).parts[0].split(".")  # a name may have dots itself
        names = (".".join(words[:count]) for count in range(1, len(words) + 1))
        yield from filter(_is_lock, (folder / f".{name}.lock" for name in names))
    with contextlib.suppress(OSError):  # what reads it says that it cannot
        yield from filter(_is_lock, listing.below(path) if listing.is_folder(path) else ())


def _is_lock(path: Path) -> bool:
    outputs = path.name.removeprefix(".").removesuffix(".lock")
    return path.name == f".{outputs}.lock" and path.with_name(outputs).is_dir() and path.is_file()


@contextmanager
def _shared(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    if sys.platform == "win32":
        with acquired(lock, waiting):  # there is none for readers
            yield

    else:
        with ExitStack() as opened:
            # It may not be read, or its file system has no locks.
            with contextlib.suppress(OSError):
                stream = opened.enter_context(entries.open_entry(lock))
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting()
                    fcntl.flock(stream, fcntl.LOCK_SH)
            yield
