"""Publication: a group's folder appears as a whole or not at all (design section 6).

    dist/<name>/<target>/<group>/          published outputs
    dist/<name>.ortpackage/                the model package, likewise
    dist/<name>.staging/new/…              staged outputs, renamed in at the end
    dist/<name>.staging/old/…              the former outputs during the swap
    dist/<name>.staging/work/…             scratch of the build
    dist/<name>.logs/                      logs of workers that failed
    dist/<name>.traces.json                traces of the EPs whose options ask for them
    dist/<name>.tar, <name>.intoto.json    files of a release
    dist/.<name>.lock                      the OS lock that a build holds
    dist/.<name>.record.json               record for the next build (engine.output.record)

Everything is staged beside its final place, on the same file system, so that a rename is enough.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import filelock
from msgspec import Struct

from epctx.cache.digests import FileDigests
from epctx.errors import StorageError
from epctx.files import digest, entries, listing, outputs
from epctx.files.digest import Digest
from epctx.files.listing import is_folder
from epctx.files.outputs import GOLDEN, SIGNATURE, SUMS, OutputFile, sums

PACKAGE = ".ortpackage"
"""Suffix of a model package's folder."""


class OutputPaths(Struct, frozen=True, kw_only=True):
    """Paths of one manifest's outputs, below the `dist` folder `out`."""

    out: Path
    name: str

    @property
    def root(self) -> Path:
        """The folder whose content is a function of the manifest."""
        return self.out / self.name

    @property
    def report(self) -> Path:
        """The build report, beside `root`."""
        return self.out / f"{self.name}.build.json"

    @property
    def page(self) -> Path:
        """Default path of the page that `epctx report` writes."""
        return self.out / f"{self.name}.report.html"

    @property
    def traces(self) -> Path:
        """Traces of the EPs, by group and file stem."""
        return self.out / f"{self.name}.traces.json"

    @property
    def logs(self) -> Path:
        """Folder of workers' logs."""
        return self.out / f"{self.name}.logs"

    @property
    def staging(self) -> Path:
        """Staging folder, which a build removes at its start and end."""
        return self.out / f"{self.name}.staging"

    def group(self, target: str, group: str) -> Path:
        """Folder of a published group."""
        return self.root / target / group

    def staged(self, target: str, group: str) -> Path:
        """Folder of a staged group."""
        return self.staging / "new" / target / group

    @property
    def package(self) -> Path:
        """Folder of the published model package."""
        return self.out / f"{self.name}{PACKAGE}"

    @property
    def archive(self) -> Path:
        """The archive of a release."""
        return self.out / f"{self.name}.tar"

    @property
    def attestation(self) -> Path:
        """The attestation of a release."""
        return self.out / f"{self.name}.intoto.json"

    @property
    def signature(self) -> Path:
        """The signature of what is published."""
        return self.root / outputs.SIGNATURE

    @property
    def releases(self) -> tuple[Path, ...]:
        """Files and folders of a release beside the outputs."""
        return self.archive, self.attestation, self.package

    @property
    def record(self) -> Path:
        """Record for the next build (`engine.output.record`)."""
        return self.out / f".{self.name}.record.json"

    @property
    def lock(self) -> Path:
        """The OS lock that a build holds."""
        return self.out / f".{self.name}.lock"

    @property
    def staged_package(self) -> Path:
        """Folder of the staged model package."""
        return self.staging / f"new{PACKAGE}"

    @property
    def work(self) -> Path:
        """Scratch of the build."""
        return self.staging / "work"

    def forget_logs(self) -> None:
        """Remove the logs of earlier builds, killed ones included.

        Raises:
            StorageError: the system refuses.
        """
        _remove(self.logs)

    @contextmanager
    def locked(self, waiting: Callable[[], None]) -> Iterator[bool]:
        """Lock the output; repair what a killed build left; remove the staging folder at the end.

        Yields whether a build was killed. After one, the last report may describe older outputs.

        Args:
            waiting: called once if another command uses the output.

        Raises:
            StorageError: the output folder cannot be written.
        """
        with outputs.writing(self.out):
            self.out.mkdir(parents=True, exist_ok=True)
            lock = acquired(self.lock, waiting)
        with lock:
            self._refuse_foreign()
            killed = self.staging.exists()
            self._repair()
            with outputs.writing(self.staging):
                self.staging.mkdir(mode=0o700)
            try:
                yield killed
            finally:
                self._repair()

    def publish(self, target: str, group: str) -> None:
        """Publish a staged group, inside `flushing`. The former group stays until the new one is in
        its place.

        Raises:
            StorageError: the system refuses.
        """
        place = self.group(target, group)
        with outputs.writing(place):
            _swap(self.staged(target, group), place, self.staging / "old" / target / group)

    @contextmanager
    def flushing(self, targets: Iterable[str]) -> Iterator[None]:
        """Flush the published groups to disk at the end, and remove the former ones.

        Done once for all groups, since a flush for one group takes as long as a flush for all.

        Raises:
            StorageError: the system refuses.
        """
        try:
            yield
        finally:
            for folder in filter(Path.is_dir, (self.root / target for target in targets)):
                with outputs.writing(folder):
                    outputs.sync_folder(folder)
        _remove(self.staging / "old")  # after a failure, `locked` puts it back

    def publish_package(self) -> None:
        """Publish the staged package, as `publish` does a group.

        Raises:
            StorageError: the system refuses.
        """
        with outputs.writing(self.package):
            _swap(self.staged_package, self.package, self._old_package)
            outputs.sync_folder(self.out)
        _remove(self._old_package)

    @property
    def _old_package(self) -> Path:
        return self.staging / f"old{PACKAGE}"

    def prune(self, keep: set[tuple[str, str]]) -> None:
        """Remove published groups that are no longer in the manifest."""
        for target in _folders(self.root):
            for group in _folders(target):
                if (target.name, group.name) not in keep and (group / outputs.SUMS).is_file():
                    _remove(group)
            if not any(target.iterdir()):
                target.rmdir()

    def _refuse_foreign(self) -> None:
        """Refuse links and folders of other users, which could redirect writes and removals.

        Raises:
            StorageError: there is such a link or folder.
        """
        inside = (*self.root.glob("*"), *self.root.glob("*/*"), *self.staging.glob("old/*"))
        for path in (self.root, self.package, self.staging, *inside):
            outputs.refuse_foreign(path)

    def _repair(self) -> None:
        for target in _folders(self.staging / "old"):
            for old in _folders(target):
                place = self.group(target.name, old.name)
                if not place.exists():
                    place.parent.mkdir(parents=True, exist_ok=True)
                    old.rename(place)
        if self._old_package.exists() and not self.package.exists():
            self._old_package.rename(self.package)
        _remove(self.staging)


def acquired(path: Path, waiting: Callable[[], None]) -> filelock.BaseFileLock:
    """Acquire the lock at a path; call `waiting` once if another process holds it."""
    lock = filelock.FileLock(str(path))
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        waiting()
        lock.acquire()
    return lock


def _swap(staged: Path, place: Path, old: Path) -> None:
    outputs.sync_folder(staged)
    if place.exists():
        old.parent.mkdir(parents=True, exist_ok=True)
        place.rename(old)
    place.parent.mkdir(parents=True, exist_ok=True)
    staged.rename(place)


def _folders(path: Path) -> list[Path]:
    return [p for p in path.iterdir() if is_folder(p)] if path.is_dir() else []


def _remove(path: Path) -> None:
    try:
        if is_folder(path):
            shutil.rmtree(path)
        else:  # rmtree would wait for a pipe
            path.unlink()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise StorageError(
            "cannot be removed",
            file=str(path),
            why=error.strerror,
            remedy="close whatever uses it and run the command again",
        ) from error


def is_apart(entry: Path) -> bool:
    """Tell whether an entry is golden files or a signature, which are not part of the outputs."""
    return entry.name == SIGNATURE or (entry.name == GOLDEN and is_folder(entry))


def difference(folder: Path, files: Sequence[OutputFile], digests: FileDigests) -> str | None:
    """Return the first difference of a folder from its expected files and SHA256SUMS, in words;
    None if there is none. A file of another size is not read.
    """
    expected = contents_of(files)
    sizes = {file.name: file.size for file in files} | {SUMS: len(sums(files))}
    try:
        entries = {entry.name: entry for entry in folder.iterdir() if not is_apart(entry)}
    except FileNotFoundError:
        return "it is not published"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    for name in sorted(expected.keys() | entries.keys()):
        if name not in entries:
            return f"{name} is missing"
        if name not in expected:
            return f"{name} does not belong there"
        if entries[name].is_symlink():
            return f"{name} is a link"
        try:
            same = entries[name].stat().st_size == sizes[name]
            content = digests.of(entries[name]) if same else None
        except OSError as error:
            return f"{name} cannot be read: {error.strerror}"
        if content != expected[name]:
            return f"{name} was changed"
    return None


def contents_of(files: Sequence[OutputFile]) -> dict[str, Digest]:
    """Return the digests of a folder's files by name, with SHA256SUMS."""
    return {**{file.name: file.blake3 for file in files}, SUMS: digest.of_bytes(sums(files))}


if sys.platform != "win32":
    import fcntl


@contextmanager
def undisturbed(paths: Iterable[Path], waiting: Callable[[], None]) -> Iterator[None]:
    """Keep builds from replacing outputs at, below or around the paths; readers share the lock.

    Without a usable lock file, nothing is locked: nobody builds in a copy of the outputs, and a
    user who cannot open the lock cannot build there.

    Args:
        waiting: called once for each output that a build has locked.
    """
    with ExitStack() as locks:
        for lock in sorted({lock for path in paths for lock in _locks(path.resolve())}):
            locks.enter_context(_shared(lock, waiting))
        yield


def _locks(path: Path) -> Iterator[Path]:
    """Yield the locks `.<name>.lock` of outputs `<name>` around and below a path."""
    for folder in path.parents:
        words = path.relative_to(folder).parts[0].split(".")  # a name may have dots itself
        names = (".".join(words[:count]) for count in range(1, len(words) + 1))
        yield from filter(_is_lock, (folder / f".{name}.lock" for name in names))
    with contextlib.suppress(OSError):  # its reader reports the error
        yield from filter(_is_lock, listing.below(path) if listing.is_folder(path) else ())


def _is_lock(path: Path) -> bool:
    outputs = path.name.removeprefix(".").removesuffix(".lock")
    return path.name == f".{outputs}.lock" and path.with_name(outputs).is_dir() and path.is_file()


@contextmanager
def _shared(lock: Path, waiting: Callable[[], None]) -> Iterator[None]:
    if sys.platform == "win32":
        with acquired(lock, waiting):  # Windows has no lock for readers
            yield

    else:
        with ExitStack() as opened:
            # The file may be unreadable, or its file system may have no locks.
            with contextlib.suppress(OSError):
                stream = opened.enter_context(entries.open_entry(lock))
                try:
                    fcntl.flock(stream, fcntl.LOCK_SH | fcntl.LOCK_NB)
                except BlockingIOError:
                    waiting()
                    fcntl.flock(stream, fcntl.LOCK_SH)
            yield
