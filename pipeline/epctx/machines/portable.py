"""Files and answers of jobs that run on other machines, in a store that all machines see.

A job keeps its paths. The machine that runs it maps each folder of these paths to a scratch folder;
the results name the paths of the machine that sent the job.
"""

from __future__ import annotations

import hmac
import secrets
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import blake3
import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx import codec, limits
from epctx.actions.action import Action
from epctx.actions.optimize import Optimize
from epctx.actions.pieces import Cut
from epctx.cache.remote.open import open_store
from epctx.cache.remote.store import Store
from epctx.cache.remote.tier import object_name, written
from epctx.error_codes import Code
from epctx.errors import CompileError, EpctxError, StorageError, UsageError
from epctx.files import copying, listing, paths
from epctx.files.digest import Digest, of_bytes, of_file
from epctx.graph import places as optimized
from epctx.graph.serde import locations
from epctx.manifest import ModelSource, ProviderSpec, Reference
from epctx.transfer.attempts import StoreError

_OPTIMIZES: Final = (Optimize, Cut)
"""Actions that write optimized models, which refer to input files of the job."""


class Files(Struct, frozen=True, kw_only=True):
    """Files that a job reads and writes, by paths of the sending machine, with `/`.

    Attributes:
        roots: folders that contain all paths; none is inside another.
        reads: contents of input files, by path.
        folders: folders that exist before the job.
        writes: output folders, each with the file that is returned only if the job fails; None to
            return the whole folder only if the job does not fail.
        optimizes: whether the job writes optimized models.
    """

    roots: tuple[str, ...]
    reads: Mapping[str, Blob]
    folders: tuple[str, ...]
    writes: Mapping[str, str | None]
    optimizes: bool = False


class _Collector:
    """Collects the files that actions and other values read and write."""

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self.near: set[Path] = set()
        self.reads: dict[Path, Blob] = {}
        self.folders: set[Path] = set()
        self.writes: dict[Path, str | None] = {}

    def look_at(self, value: Any) -> None:
        """Collect the paths of a value. Raises StorageError."""
        if isinstance(value, Action):
            for name in value.writes:
                path: Path = getattr(value, name)
                self.near.add(path.parent)
                if path.is_dir():
                    self.folders.add(path)
                    if name in value.adds and path not in self.writes:
                        self._read_below(path)
                self.writes[path] = value.failed.get(name)
            value = replace(value, **dict.fromkeys(value.writes))
        moved_in(value, self._read, self._read_model)

    def _put(self, path: Path) -> None:
        self.near.add(path.parent)
        if path not in self.reads:
            self.reads[path] = self._blobs.put(path)

    def _read(self, path: Path) -> Path:
        if not path.is_absolute() or any(path.is_relative_to(each) for each in self.writes):
            return path
        self.near.add(path.parent)
        if path.is_file():
            self._put(path)
        elif path.is_dir():
            self._read_below(path)
        return path

    def _read_below(self, folder: Path) -> None:
        """Collect a folder, and the files outside that its optimized models refer to."""
        self.folders.add(folder)
        for path in _files(folder):
            self._put(path)
            if path.name == optimized.RECORD:
                try:
                    sources = optimized.sources(path.parent)
                except (OSError, msgspec.MsgspecError) as error:
                    raise StorageError(
                        "is not an optimized model",
                        file=str(path.parent),
                        why=str(error),
                        remedy="build again",
                    ) from error
                for source in sources.values():
                    self._put(source)

    def _read_model(self, path: Path, data: Path | None) -> None:
        """Collect a model with its existing data files; the job reports what is wrong."""
        self._read(path)
        folder = data or path.parent
        self.near.add(folder)
        try:
            names = locations.of(path)
        except EpctxError:
            return
        roots = paths.data_roots(path, path.resolve(), data)
        for name in (paths.normalize(name) for name in names if paths.fault(name) is None):
            place = folder / name
            if place.is_file() and any(map(place.resolve().is_relative_to, roots)):
                self._put(place)


def pack(blobs: Blobs, values: Iterable[Any]) -> Files:
    """Store the input files of actions and other values in the blobs.

    Raises:
        StorageError: a file cannot be read, or the blobs cannot be written.
    """
    files, optimizes = _Collector(blobs), False
    for value in values:
        files.look_at(value)
        optimizes = optimizes or isinstance(value, _OPTIMIZES)
    roots: list[Path] = []
    for folder in sorted(files.near, key=lambda path: len(path.parts)):
        if not any(folder.is_relative_to(root) for root in roots):
            roots.append(folder)
    return Files(
        roots=tuple(root.as_posix() for root in roots),
        reads={path.as_posix(): blob for path, blob in files.reads.items()},
        folders=tuple(folder.as_posix() for folder in sorted(files.folders)),
        writes={path.as_posix(): failed for path, failed in files.writes.items()},
        optimizes=optimizes,
    )


def receive(blobs: Blobs, files: Files, outputs: Mapping[str, Blob], *, failed: bool) -> None:
    """Write the output files of a job to their paths.

    Raises:
        StorageError: a content is missing, or the disk refuses.
        CompileError: the answer cannot be true.
    """
    _require_few(outputs)
    for text in outputs:
        write = next((each for each in files.writes if text.startswith(f"{each}/")), None)
        below = None if write is None else text.removeprefix(f"{write}/")
        only = None if write is None else files.writes[write]
        if below is None or not paths.is_plain(below) or failed == (only is None):
            raise _untrue(f"a file that its job does not write: {text}")
        if only is not None and below != only:
            raise _untrue(f"a file that its job does not write: {text}")
    for folder, only in files.writes.items():
        if only is None and not failed:
            Path(folder).mkdir(parents=True, exist_ok=True)
    _write({Path(text): blob for text, blob in outputs.items()}, blobs)
    if files.optimizes:
        _tell_places(map(Path, outputs), {b.digest: Path(text) for text, b in files.reads.items()})


class Placed:
    """Files of a job on the machine that runs it.

    Args:
        home: a new folder for them.
    """

    def __init__(self, files: Files, home: Path) -> None:
        self._files = files
        self._roots = {root: home / str(number) for number, root in enumerate(files.roots)}

    def real(self, path: Path) -> Path:
        """Return the local path for a path of a job. Raises CompileError if there is none."""
        text = path.as_posix()
        if text == ".":
            return path
        for root, here in self._roots.items():
            if text == root:
                return here
            below = text.removeprefix(f"{root.rstrip('/')}/")
            if below != text and paths.is_plain(below):
                return here / below
        raise _untrue(f"a path outside the job: {text}")

    def named(self, text: str) -> str:
        """Return JSON with the sending machine's paths in the place of local ones."""
        for root, here in self._roots.items():
            for own in {here.as_posix(), str(here)}:
                text = text.replace(_escaped(own), _escaped(root))
        return text

    def lay_out(self, blobs: Blobs) -> None:
        """Write the input files of the job.

        Raises:
            StorageError: a content is missing, or the disk refuses.
            CompileError: the job is invalid.
        """
        reads = {self.real(Path(text)): blob for text, blob in self._files.reads.items()}
        _require_few(reads)
        for here in self._roots.values():
            here.mkdir(parents=True, exist_ok=True)
        for text in self._files.folders:
            self.real(Path(text)).mkdir(parents=True, exist_ok=True)
        for text in self._files.writes:
            self.real(Path(text)).parent.mkdir(parents=True, exist_ok=True)
        _write(reads, blobs)
        _tell_places(reads, {blob.digest: path for path, blob in reads.items()})

    def collect(self, blobs: Blobs, *, failed: bool) -> dict[str, Blob]:
        """Store the output files of the job in the blobs, for `receive`. Raises StorageError."""
        outputs: dict[str, Blob] = {}
        for text, only in self._files.writes.items():
            folder = self.real(Path(text))
            if only is None:
                paths = {} if failed else {p.relative_to(folder): p for p in _files(folder)}
            else:
                paths = {Path(only): folder / only} if (folder / only).is_file() and failed else {}
            for below, path in paths.items():
                name, blob = f"{text}/{below.as_posix()}", blobs.put(path)
                if self._files.reads.get(name) != blob:
                    outputs[name] = blob
        return outputs


def _files(folder: Path) -> Iterator[Path]:
    """Yield the files below a folder, without the local places of optimized models."""
    for path in listing.below(folder) if folder.is_dir() else ():
        if path.name != optimized.PLACES and path.is_file():
            yield path


def _write(files: Mapping[Path, Blob], blobs: Blobs) -> None:
    for path, blob in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        blobs.fetch(blob, path)


def _tell_places(paths: Iterable[Path], places: Mapping[Any, Path]) -> None:
    """Write the local places of the files that optimized models refer to."""
    places_by_digest = {str(digest): path for digest, path in places.items()}
    for path in paths:
        if path.name == optimized.RECORD:
            optimized.write(path.parent, places_by_digest)


Model = Callable[[Path, Path | None], None]


def moved_in(value: Any, place: Callable[[Path], Path], model: Model | None = None) -> Any:
    """Return a value with other paths.

    Args:
        place: maps a path to the new one.
        model: receives a model and the folder of its external data, in the place of `place`.
    """
    again = partial(moved_in, place=place, model=model)
    match value:
        case Path():
            return place(value)
        case ModelSource() | Reference() if model is not None:
            model(value.path, value.external_data_dir)
            if isinstance(value, ModelSource):
                again((value.reference, value.custom_ops))
            return value
        case ProviderSpec():
            options = {
                name: str(place(Path(str(text)))) if name in value.path_options else text
                for name, text in value.options.items()
            }
            return replace(value, options=options)
        case Struct():
            fields = {name: getattr(value, name) for name in value.__struct_fields__}
            changed = {n: new for n, old in fields.items() if (new := again(old)) is not old}
            return replace(value, **changed) if changed else value
        case tuple() | list():
            items = [again(each) for each in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        case Mapping():
            return {name: again(each) for name, each in value.items()}
    return value


def _escaped(text: str) -> str:
    return codec.encode(text).decode()[1:-1]


def _require_few(files: Mapping[Any, Blob]) -> None:
    if len(files) > limits.MACHINE_FILES.value:
        raise _untrue(f"more than {limits.MACHINE_FILES}")


def _untrue(what: str) -> CompileError:
    return CompileError(
        f"another machine sent an invalid message: {what}",
        remedy="use the same version of epctx on all machines; else report it",
    )


VARIABLE: Final = "EPCTX_REMOTE_CACHE"
_KEPT: Final = 16 << 30
"""Maximum bytes of fetched files to keep for later jobs."""


class Blob(Struct, frozen=True, kw_only=True):
    """Content of a file: its BLAKE3, and its size in bytes."""

    digest: Digest
    size: int


class Blobs:
    """Contents by digest, and answers by nonce, in an untrusted store. Thread-safe.

    An answer is an object whose name is the digest of a nonce. The nonce, which the store does not
    know, authenticates the answer. To gc, an answer is an object without a record.

    Args:
        kept: folder that keeps fetched files, as far as there is space; None to keep none.
        digest: digests a file to put.
    """

    def __init__(
        self, store: Store, kept: Path | None = None, digest: Callable[[Path], Digest] = of_file
    ) -> None:
        self._store = store
        self._kept = kept
        self._digest = digest
        self._lock = threading.Lock()

    def put(self, path: Path) -> Blob:
        """Upload a file's content, unless the store has an object of its name and size.

        Raises:
            StorageError: the file cannot be read, or the store cannot be written.
        """
        with StorageError.if_refused(
            "cannot be read",
            file=str(path),
            remedy="run the command again when nothing writes to it",
        ):
            blob = Blob(digest=self._digest(path), size=path.stat().st_size)
        with self._refusals(blob.digest):
            self._store.upload(object_name(blob.digest), path)
        return blob

    def fetch(self, blob: Blob, target: Path) -> None:
        """Download a content to the new file `target`, and check it.

        Raises:
            StorageError: it is missing or wrong, or `target` cannot be written.
        """
        if self._kept is None:
            self._download(blob, target)
            return
        kept = self._kept / blob.digest.hex
        with self._lock:  # two jobs with one content fetch it once
            if not kept.exists():
                self._make_room(blob.size)
                self._download(blob, kept)
            copying.copy(kept, target)

    def put_answer(self, nonce: Digest, text: str) -> None:
        """Upload an answer. Raises StorageError."""
        with self._refusals(nonce):
            self._store.write(_answer_name(nonce), f"{_proof(nonce, text)}{text}".encode())

    def get_answer(self, nonce: Digest) -> str:
        """Download an answer. Raises StorageError if there is no authentic one."""
        with self._refusals(nonce):
            limit = limits.MACHINE_JOB.value + len(nonce.hex)
            content = self._store.read(_answer_name(nonce), limit)
            if content is None:
                raise StoreError("there is no answer")
            answer = content.decode(errors="replace")
            proof, text = answer[: len(nonce.hex)], answer[len(nonce.hex) :]
            if not hmac.compare_digest(proof.encode(), _proof(nonce, text).encode()):
                raise StoreError("the answer is not from the worker that was asked")
        return text

    def forget(self, nonces: list[Digest]) -> None:
        """Remove answers; gc removes the rest."""
        with suppress(StoreError):
            self._store.delete(map(_answer_name, nonces))

    def _make_room(self, size: int) -> None:
        """Remove the oldest kept files until those that stay, and `size` bytes, take no more than
        the limit or the free space.
        """
        assert self._kept is not None
        self._kept.mkdir(parents=True, exist_ok=True)
        files = sorted(self._kept.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        room = min(_KEPT, shutil.disk_usage(self._kept).free) - size
        for path in reversed(files):
            room -= path.stat().st_size
            if room < 0:
                path.unlink()

    def _download(self, blob: Blob, target: Path) -> None:
        name = object_name(blob.digest)
        with self._refusals(blob.digest):
            try:
                pieces = self._store.stream(name, blob.size)
                if pieces is None:
                    raise StoreError("it does not exist")
                if not written(pieces, blob.digest, blob.size, target):
                    self._store.delete([name])  # a machine that has the content uploads it again
                    raise StoreError("its content differs from its digest")
            except BaseException:
                target.unlink(missing_ok=True)
                raise

    @contextmanager
    def _refusals(self, name: Digest) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise StorageError(
                "did not come through the shared cache",
                where=str(name),
                why=f"{self._store.url}: {error}",
                remedy=f"check that {VARIABLE} names one place on all machines, and run the "
                "command again",
            ) from error


def new_nonce() -> Digest:
    """Return a random name for an answer."""
    return Digest("blake3", secrets.token_hex(32))


def _answer_name(nonce: Digest) -> str:
    return object_name(of_bytes(bytes.fromhex(nonce.hex)))


def _proof(nonce: Digest, text: str) -> str:
    return blake3.blake3(text.encode(), key=bytes.fromhex(nonce.hex)).hexdigest()


def shared(
    url: str | None, kept: Path | None = None, digest: Callable[[Path], Digest] = of_file
) -> Blobs:
    """Open the blobs at the URL of the shared cache.

    Raises:
        UsageError: the URL is missing or invalid.
    """
    if not url:
        raise UsageError(
            "builds on other machines need a shared cache, but none is set",
            where=VARIABLE,
            remedy=f"set {VARIABLE} here and on each worker: s3://bucket/prefix, or a folder that "
            "all of them see, file:///mnt/share",
            code=Code.ENVIRONMENT,
        )
    return Blobs(open_store(url), kept, digest)
