"""The quickest answer to a build: nothing has changed since there was nothing to do.

A build that finds everything up to date leaves a note of all that it looked at: sources, outputs,
lock, the code of epctx and of the EPs, libraries, where Python finds packages, each with what stat
says of it. The same command in the same folder then compares stat and is done, before anything is
imported that a build needs. Whatever is not as it was, or not known for sure, is looked at
properly; so this can only ever be right or useless.

It stands on the same ground as remembered digests (files.identity): a change of a file shows in
its change time. That, and an identity of the running system, is there on Linux. Of the environment
the note has no text: caches are uploaded, and a variable may be a password.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import blake3

from epctx import limits
from epctx.cache.location import locate
from epctx.errors import EpctxError
from epctx.files import identity
from epctx.files.entries import open_entry

if TYPE_CHECKING:
    from epctx.cache.digests import FileDigests
    from epctx.cache.records import Records
    from epctx.files.digest import Digest

KIND: Final = "unchanged"
VERSION = 3
LASTING = 86_400.0
"""Seconds that a note is good for: gc must see that results are of use."""
MISSING = ""
_BOOT = Path("/proc/sys/kernel/random/boot_id")
"""Another after each start: another CPU would need one."""

_SHELL = frozenset({"_", "COLUMNS", "LINES", "OLDPWD", "PWD", "SHLVL"})
"""What a shell changes from command to command; anything else may mean something to an EP."""


_asked: list[str] | None = None
"""The arguments that `recall` was asked about: those of this process."""


def recall(arguments: Sequence[str]) -> list[str] | None:
    """What `epctx` with these arguments printed when it had nothing to do, if that still holds.

    None: look properly. Never raises.
    """
    global _asked
    _asked = list(arguments)
    begun = time.monotonic()
    if sys.platform != "linux" or arguments[:1] != ["build"]:
        return None
    try:
        name = name_of(arguments)
        path = locate().root / KIND / name[:2] / name
        with open_entry(path) as stream:
            content = stream.read(limits.RECORD_BYTES.value)
        payload = content[65:]
        if (
            content[:64]
            != blake3.blake3(f"{KIND}/{name}\n".encode() + payload).hexdigest().encode()
        ):
            return None
        note = json.loads(payload)
        if note["version"] != VERSION or time.time() > note["until"]:
            return None
        if note["surroundings"] != surroundings() or any(map(os.path.lexists, note["absent"])):
            return None
        if any(stamp(path) != text for path, text in note["paths"].items()):
            return None
        said = [str(line) for line in note["says"]]
        "".join(said).encode()  # what cannot be printed was never said
        return list(_renewed(said, begun)) if note["report"] else said
    except (
        OSError,
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        EpctxError,
    ):
        return None


def _renewed(report: Iterable[str], begun: float) -> Iterator[str]:
    """The lines of a build report, which says the same as the one before but for its times.

    Its own fields are those two spaces from the left: no text in it has a line break.
    """
    started = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    own = {"started": f'"{started}"', "seconds": f"{time.monotonic() - begun:.3f}"}
    for line in report:
        known = next((name for name in own if line.startswith(f'  "{name}": ')), None)
        comma = "," if line.endswith(",") else ""
        yield line if known is None else f'  "{known}": {own[known]}{comma}'


def name_of(arguments: Sequence[str]) -> str:
    """The name of the note of a command in the current folder."""
    return blake3.blake3(json.dumps([str(Path.cwd()), *arguments]).encode()).hexdigest()


def surroundings() -> str:
    """A digest of what a process is in, beside files. Raises OSError where that cannot be told.

    Its key is the running system's random id, which is in no file and is another after each start:
    whoever gets a cache elsewhere cannot find out a variable by trying.
    """
    environment = sorted((k, v) for k, v in os.environ.items() if k not in _SHELL)
    found = [sys.version, sys.executable, sys.prefix, sys.path, environment]
    key = blake3.blake3(_BOOT.read_bytes()).digest()
    return blake3.blake3(json.dumps(found).encode(), key=key).hexdigest()


def stamp(path: str | os.PathLike[str]) -> str:
    """What stat says of a file or folder, links followed; `MISSING` if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - hundreds of them, and nothing else to do
    except OSError:
        return MISSING
    return identity.text_of(status, status.st_ctime_ns)


class Watched:
    """All that a build looks at, each with its stamp from before it was looked at.

    Attributes:
        sound: nothing was looked at whose change could be missed.
    """

    def __init__(self) -> None:
        self.sound = sys.platform == "linux"
        self._stamps: dict[str, str] = {}
        self._absent: list[str] = []

    def note(self, paths: Iterable[str | os.PathLike[str]]) -> None:
        """Files and folders that are about to be looked at; a folder stands for its entries."""
        now = time.time()
        for path in (os.fspath(each) for each in paths):
            if path not in self._stamps:
                text = self._stamps[path] = stamp(path)
                if text != MISSING and self.sound:
                    self.sound = identity.tells(path, text) and _settled(text, now)

    def seen(self, stamps: Mapping[str, str]) -> None:
        """Files and folders that were found to be as they were when any change of them would show,
        each with its stamp.
        """
        self._stamps.update(stamps)

    def read(self, *paths: Path) -> None:
        """Files that are about to be read, but not for a digest; folders with what is in them."""
        for path in paths:
            place = [str(path), *_tree(path)]
            self.note(place)
            for file in place:
                with (
                    contextlib.suppress(OSError, RuntimeError),  # RuntimeError: a loop of links
                    open_entry(Path(file).resolve()) as stream,
                ):
                    identity.show_writes(stream.fileno())

    def code(self, package: Path, *more: Path) -> None:
        """Every file of a package, and of other folders; where Python looks for packages."""
        for folder in (package, *more):
            self.note(_tree(folder))
        self.note(folder or os.curdir for folder in sys.path)

    def absent(self, path: Path) -> None:
        """A path that must not be there."""
        self._absent.append(str(path))

    def give_up(self) -> None:
        """Something is looked at that has no stamp."""
        self.sound = False

    def remember(self, records: Records, says: Sequence[str], *, report: bool = False) -> None:
        """Leave the note that there was nothing to do, and what was said of it.

        Args:
            records: of the cache.
            says: the lines that were printed.
            report: they are the build report as JSON, which tells when it was made.

        Raises:
            StorageError: the cache cannot be written.
        """
        if not self.sound or _asked is None:
            return
        try:
            now = surroundings()
        except OSError:  # as where /proc is not mounted
            return
        records.write(
            KIND,
            name_of(_asked),
            {
                "version": VERSION,
                "until": time.time() + LASTING,
                "surroundings": now,
                "says": list(says),
                "report": report,
                "absent": self._absent,
                "paths": self._stamps,
            },
        )


class Watching:
    """Digests files as another does, and notes which (`cache.digests.FileDigests`)."""

    def __init__(self, digests: FileDigests, watched: Watched) -> None:
        self._digests = digests
        self._watched = watched

    def of(self, path: Path) -> Digest:
        """As the Protocol says."""
        self._watched.note((path, path.parent))
        return self._digests.of(path)

    def of_tree(self, root: Path, files: Iterable[Path]) -> Digest:
        """As the Protocol says."""
        self._watched.note(_tree(root))
        return self._digests.of_tree(root, files)


def _tree(folder: Path) -> Iterator[str]:
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield place
        yield from (f"{place}{os.sep}{name}" for name in files)


def _settled(text: str, now: float) -> bool:
    """The last change was long enough ago that any later one shows."""
    modified, changed = text.split(":")[3:]
    return max(int(modified), int(changed)) / 1e9 + identity.SETTLED < now
