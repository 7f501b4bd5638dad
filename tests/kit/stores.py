"""Stores for tests of what stands before them: a folder, and one that does what it is told."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock
from urllib.parse import urlsplit
from urllib.request import url2pathname

from epctx.cache.remote.store import Stored
from epctx.errors import UsageError
from epctx.transfer.attempts import StoreError

_PIECE = 1 << 20


@dataclass
class FolderStore:
    """Blobs as the files of a folder, as a share has them.

    Attributes:
        calls: what was asked, in order: the method and the name.
    """

    folder: Path
    calls: list[tuple[str, str]] = field(default_factory=list)

    @property
    def url(self) -> str:
        return self.folder.as_uri()

    def read(self, name: str, most: int) -> bytes | None:
        self.calls.append(("read", name))
        try:
            with (self.folder / name).open("rb") as stream:
                content = stream.read(most + 1)
        except FileNotFoundError:
            return None
        if len(content) > most:
            raise StoreError(f"{name} has more than {most} bytes")
        return content

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        self.calls.append(("stream", name))
        if not (self.folder / name).is_file():
            return None
        return self._pieces(self.folder / name)

    def _pieces(self, path: Path) -> Iterator[bytes]:
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE):
                yield piece

    def size(self, name: str) -> int | None:
        self.calls.append(("size", name))
        try:
            return (self.folder / name).stat().st_size
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        self.calls.append(("write", name))
        path = self.folder / name
        if not path.exists() or path.read_bytes() != content:
            self.delete([name])
            self._put(name, lambda path: path.write_bytes(content))

    def upload(self, name: str, source: Path) -> None:
        self.calls.append(("upload", name))
        self._put(name, lambda path: shutil.copyfile(source, path))

    def _put(self, name: str, fill: Callable[[Path], object]) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        beside = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}")
        fill(beside)
        if path.exists():
            beside.unlink()
        else:
            beside.replace(path)

    def list(self, prefix: str) -> Iterator[Stored]:
        self.calls.append(("list", prefix))
        for path in sorted(self.folder.rglob("*")):
            name = path.relative_to(self.folder).as_posix()
            if path.is_file() and name.startswith(prefix):
                status = path.stat()
                yield Stored(name=name, size=status.st_size, modified=status.st_mtime)

    def delete(self, names: Iterable[str]) -> None:
        for name in names:
            self.calls.append(("delete", name))
            (self.folder / name).unlink(missing_ok=True)


Fault = Callable[[str], object]
"""Is called with a blob's name before it is asked for; raises, waits, or does nothing."""


@dataclass
class FaultyStore(FolderStore):
    """A folder in whose way something is.

    Attributes:
        faults: by method.
    """

    faults: dict[str, Fault] = field(default_factory=dict)

    def _meet(self, method: str, name: str) -> None:
        if method in self.faults:
            self.faults[method](name)

    def read(self, name: str, most: int) -> bytes | None:
        self._meet("read", name)
        return super().read(name, most)

    def stream(self, name: str, size: int) -> Iterator[bytes] | None:
        self._meet("stream", name)
        return super().stream(name, size)

    def size(self, name: str) -> int | None:
        self._meet("size", name)
        return super().size(name)

    def write(self, name: str, content: bytes) -> None:
        self._meet("write", name)
        super().write(name, content)

    def upload(self, name: str, source: Path) -> None:
        self._meet("upload", name)
        super().upload(name, source)


def opened(url: str) -> FolderStore:
    """The store of a `file://` URL.

    Raises:
        UsageError: it is of another kind.
    """
    parts = urlsplit(url)
    if parts.scheme != "file":
        raise UsageError("is no shared cache of this test", remedy="name a folder")
    return FolderStore(Path(url2pathname(parts.path)))


def installed() -> AbstractContextManager[object]:
    """Folders stand for all stores meanwhile, in this process."""
    return mock.patch("epctx.cache.remote.tier.open_store", opened)


def failing(text: str = "it answers 500", *, lasting: bool = False) -> Fault:
    """A fault: whatever is asked fails."""

    def fail(name: str) -> None:
        raise StoreError(text, lasting=lasting)

    return fail
