"""Jobs that can be carried out elsewhere: paths become numbered places, and files become blobs.

On one side `Packing.pack` puts what a job reads into the blobs, and names each file or folder of it
by a number; on the other `placed` makes a folder of each number, and `collected` puts what the job
wrote into the blobs, which `Packing.receive` writes to where the job's own paths lead.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from epctx import codec, limits
from epctx.actions.action import Action
from epctx.actions.optimize import Optimize
from epctx.actions.pieces import Cut
from epctx.errors import CompileError, EpctxError, StorageError
from epctx.files import listing, paths
from epctx.files.digest import of_json
from epctx.graph.optimized import paths as optimized
from epctx.graph.serde import locations
from epctx.machines.blobs import Blob, Blobs
from epctx.manifest import ModelSource, ProviderSpec, Reference

T = TypeVar("T")
Place = Callable[[Path], Path]
Tree = Mapping[str, Blob]
"""The files below a folder, by path, with `/`."""
_SCHEME: Final = "epctx-place:"


class Input(Struct, frozen=True, kw_only=True, tag=True):
    """What a job reads at a place.

    Attributes:
        files: below it; of a single file that one, by its name.
        beside: contents that an optimized model in it refers to, wherever they are.
        single: the place is that file, not a folder.
    """

    files: Tree
    beside: tuple[Blob, ...] = ()
    single: bool = False

    @property
    def name(self) -> str:
        """One name for one content."""
        return of_json(msgspec.to_builtins(self)).hex[:24]


class Output(Struct, frozen=True, kw_only=True, tag=True):
    """A folder that a job writes to.

    Attributes:
        exists: it does, before the job.
        files: what is there then, if the job reads that, too.
        failed: only this file of it counts, and only if the job fails.
    """

    exists: bool
    files: Tree = msgspec.field(default_factory=dict)
    failed: str | None = None


class Item(Struct, frozen=True, kw_only=True):
    """What was packed: its class, by name, and it, in which a path is the number of a place and
    what is below that.
    """

    kind: str
    value: msgspec.Raw


class Portable(Struct, frozen=True, kw_only=True):
    """A job without a path of the machine that it comes from.

    Attributes:
        items: its actions; or something else that holds paths.
        places: by number.
    """

    items: tuple[Item, ...]
    places: tuple[Input | Output, ...]


class Packed(Struct, frozen=True, kw_only=True):
    """A job that was made portable, and what is needed to take in what comes back.

    Attributes:
        paths: of its places, on this machine.
        sources: paths of files that an optimized model may refer to, by digest.
    """

    portable: Portable
    paths: tuple[Path, ...]
    sources: Mapping[str, Path]


class Packing:
    """Makes jobs portable. Used by many threads.

    A model is put into the blobs once, and an optimized one that came out of them not at all, since
    nothing may change them while they are built.
    """

    def __init__(self, blobs: Blobs) -> None:
        self._blobs = blobs
        self._lock = threading.Lock()
        self._models: dict[tuple[Path, Path | None], tuple[Input, Input | None]] = {}
        self._optimized: dict[Path, Tree] = {}

    def pack(self, *job: object) -> Packed:
        """A job, or anything else that holds paths, with all that it reads in the blobs.

        Raises:
            StorageError: a file cannot be read, or the blobs cannot be written.
        """
        return _Pack(self).packed(job)

    def receive(self, packed: Packed, made: Mapping[int, Tree]) -> None:
        """Write what a job has made to where it is to be.

        Raises:
            StorageError: a content is not there, or the disk refuses.
            CompileError: it cannot be true.
        """
        for number, tree in made.items():
            places = packed.portable.places
            place = places[number] if 0 <= number < len(places) else None
            if not isinstance(place, Output) or (place.failed and {*tree} > {place.failed}):
                raise _untrue("files where none should be")
            folder = packed.paths[number]
            folder.mkdir(parents=True, exist_ok=True)
            _write(tree, self._blobs, folder)
            kinds = {each.kind for each in packed.portable.items}
            if kinds.isdisjoint((Optimize.__name__, Cut.__name__)):
                continue
            for record in (name for name in tree if PurePosixPath(name).name == optimized.RECORD):
                model = folder / PurePosixPath(record).parent
                optimized.write(model, packed.sources)
                root = record.removesuffix(optimized.RECORD)
                own = {n.removeprefix(root): each for n, each in tree.items() if n.startswith(root)}
                with self._lock:
                    self._optimized[model] = own

    def put(self, path: Path) -> Blob:
        """A file, in the blobs."""
        return self._blobs.put(path)

    def tree(self, folder: Path, *, leaving_out: str = "") -> Tree:
        """All files below a folder, in the blobs."""
        return {
            path.relative_to(folder).as_posix(): self.put(path)
            for path in sorted(listing.below(folder))
            if path.is_file() and path.name != leaving_out
        }

    def optimized(self, folder: Path) -> Tree:
        """The files of an optimized model, in the blobs."""
        with self._lock:
            known = self._optimized.get(folder)
        return self.tree(folder, leaving_out=optimized.PLACES) if known is None else known

    def model(self, path: Path, data: Path | None) -> tuple[Input, Input | None]:
        """A model with its external data: its folder, and that of the data, if that is another."""
        with self._lock:
            known = self._models.get((path, data))
        if known is None:
            own = {path.name: self.put(path)} if path.is_file() else {}
            beside = {name: self.put(found) for name, found in _data(path, data or path.parent)}
            if data is None:
                known = Input(files={**beside, **own}), None
            else:
                known = Input(files=own), Input(files=beside)
            with self._lock:
                self._models[path, data] = known
        return known


def _data(model: Path, folder: Path) -> Iterator[tuple[str, Path]]:
    """The data files that a model refers to, and that are there: what is wrong is for the job to
    tell.
    """
    try:
        names = locations.of(model)
    except EpctxError:
        return
    whole = folder.resolve()
    for name in names:
        if paths.fault(name) is None:
            place = folder / paths.normalize(name)
            if place.is_file() and place.resolve().is_relative_to(whole):
                yield paths.normalize(name), place


class _Pack:
    """One job, made portable."""

    def __init__(self, packing: Packing) -> None:
        self._packing = packing
        self._places: list[Input | Output] = []
        self._paths: list[Path] = []
        self._sources: dict[str, Path] = {}
        self._written: dict[Path, Path] = {}

    def packed(self, job: Sequence[Any]) -> Packed:
        items = tuple(
            Item(kind=type(each).__name__, value=msgspec.Raw(codec.encode(self._moved(each))))
            for each in job
        )
        return Packed(
            portable=Portable(items=items, places=tuple(self._places)),
            paths=tuple(self._paths),
            sources=self._sources,
        )

    def _moved(self, value: Any) -> Any:
        writes: dict[str, Path] = {}
        if isinstance(value, Action):
            for name in value.writes:
                path, added = getattr(value, name), name in value.adds
                writes[name] = self._output(path, value.failed.get(name), added=added)
            value = replace(value, **dict.fromkeys(writes))
        return replace(moved_in(value, self._input, self._model), **writes)

    def _add(self, place: Input | Output, path: Path) -> Path:
        """The number of a place, as a path; one that is there already is not a second one."""
        if isinstance(place, Input) and place in self._places:
            number = self._places.index(place)
            if self._paths[number] == path:
                return Path(f"{_SCHEME}{number}")
        self._places.append(place)
        self._paths.append(path)
        return Path(f"{_SCHEME}{len(self._places) - 1}")

    def _output(self, path: Path, failed: str | None, *, added: bool) -> Path:
        if path not in self._written:
            files = self._packing.tree(path) if added and path.is_dir() else {}
            place = Output(exists=path.is_dir(), files=files, failed=failed)
            self._written[path] = self._add(place, path)
        return self._written[path]

    def _input(self, path: Path) -> Path:
        if path in self._written:
            return self._written[path]
        if path.is_file():
            single = Input(files={path.name: self._packing.put(path)}, single=True)
            return self._add(single, path)
        if not (path / optimized.RECORD).is_file():
            return self._add(Input(files=self._packing.tree(path)), path)
        try:
            found = optimized.sources(path)
            self._sources.update(optimized.made(path))
        except (OSError, msgspec.MsgspecError) as error:
            raise StorageError(
                "is no optimized model", file=str(path), why=str(error), remedy="build again"
            ) from error
        self._sources.update(found)
        files = self._packing.optimized(path)
        beside = tuple(self._packing.put(each) for each in found.values())
        return self._add(Input(files=files, beside=beside), path)

    def _model(self, path: Path, data: Path | None) -> tuple[Path, Path | None]:
        own, beside = self._packing.model(path, data)
        folder = data or path.parent
        for place, root in ((own, path.parent), (beside, folder)):
            for name, blob in () if place is None else place.files.items():
                self._sources[str(blob.digest)] = root / name
        where = None if beside is None else self._add(beside, folder)
        return self._add(own, path.parent) / path.name, where


Model = Callable[[Path, Path | None], tuple[Path, Path | None]]


def moved_in(value: Any, place: Place, model: Model | None = None) -> Any:
    """A value with other paths.

    Args:
        place: where a path of it leads in the new one.
        model: the same of a model and the folder of its external data; None: as all paths.
    """
    if value is None or isinstance(value, str | int | float):
        return value
    match value:
        case Path():
            return place(value)
        case ModelSource() | Reference() if model is not None:
            path, data = model(value.path, value.external_data_dir)
            found = replace(value, path=path, external_data_dir=data)
            if isinstance(found, ModelSource):
                return replace(found, reference=moved_in(found.reference, place, model))
            return found
        case ProviderSpec():
            options = {
                name: str(place(Path(str(text)))) if name in value.path_options else text
                for name, text in value.options.items()
            }
            return replace(value, options=options)
        case Struct():
            changed = {
                name: new
                for name in value.__struct_fields__
                if (new := moved_in(old := getattr(value, name), place, model)) is not old
            }
            return replace(value, **changed) if changed else value
        case tuple() | list():
            items = [moved_in(each, place, model) for each in value]
            same = all(new is old for new, old in zip(items, value, strict=True))
            return value if same else type(value)(items)
        case Mapping():
            return {name: moved_in(each, place, model) for name, each in value.items()}
    return value


def placed(
    portable: Portable, kinds: Mapping[str, type[Any]], blobs: Blobs, folder: Path, new: Path
) -> tuple[list[Any], tuple[Path, ...]]:
    """The job on this machine, with all that it reads; and the paths of its places.

    Args:
        kinds: of what may be in it, by name.
        folder: where inputs are, each once: of the jobs before, too.
        new: a folder for what it writes, which is made.

    Raises:
        StorageError: a content is not there, or the disk refuses.
        CompileError: it is no such job.
    """
    new.mkdir(parents=True)
    roots: list[Path] = []
    for number, place in enumerate(portable.places):
        if isinstance(place, Input):
            roots.append(_laid_out(place, blobs, folder))
            continue
        roots.append(new / str(number))
        if place.exists:
            roots[-1].mkdir()
            _write(place.files, blobs, roots[-1])

    def real(path: Path) -> Path:
        head, _, below = path.as_posix().partition("/")
        number = head.removeprefix(_SCHEME)
        if head == number or not number.isdecimal() or int(number) >= len(roots):
            raise _untrue(f"a path {path}")
        if below and not paths.is_plain(below):
            raise _untrue(f"a path {path}")
        return roots[int(number)] / below if below else roots[int(number)]

    job: list[Any] = []
    for item in portable.items:
        kind = kinds.get(item.kind)
        if kind is None:
            raise CompileError(
                "another machine asked for what there is not",
                where=item.kind,
                remedy="use the same version of epctx on all machines",
            )
        try:
            job.append(moved_in(codec.decode(bytes(item.value), kind), real))
        except msgspec.MsgspecError as error:
            raise _untrue(f"a job that is none: {error}") from error
    return job, tuple(roots)


def _laid_out(place: Input, blobs: Blobs, folder: Path) -> Path:
    root = folder / place.name
    if not root.is_dir():
        making = folder / f"{place.name}-{threading.get_ident()}"
        files = making / "files"
        files.mkdir(parents=True)
        _write(place.files, blobs, files)
        for blob in place.beside:
            beside = making / blob.digest.hex
            if not beside.exists():
                blobs.fetch(blob, beside)
        making.rename(root)  # the times of what is moved stay, and so do the identities below
        if (root / "files" / optimized.RECORD).is_file():
            found = {str(blob.digest): root / blob.digest.hex for blob in place.beside}
            optimized.write(root / "files", found)
    return root / "files" / next(iter(place.files)) if place.single else root / "files"


def _write(tree: Tree, blobs: Blobs, folder: Path) -> None:
    if len(tree) > limits.MACHINE_FILES.value or not all(map(paths.is_plain, tree)):
        raise _untrue("files that are none")
    for name, blob in tree.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        blobs.fetch(blob, target)


def collected(
    portable: Portable, roots: Sequence[Path], blobs: Blobs, *, failed: bool
) -> dict[int, Tree]:
    """What a job has written, in the blobs, by the number of its place.

    Raises:
        StorageError: the blobs cannot be written.
    """
    packing = Packing(blobs)
    found: dict[int, Tree] = {}
    for number, place in enumerate(portable.places):
        if not isinstance(place, Output):
            continue
        root = roots[number]
        if place.failed is not None:
            if failed and (root / place.failed).is_file():
                found[number] = {place.failed: packing.put(root / place.failed)}
        elif not failed and root.is_dir():
            tree = packing.tree(root, leaving_out=optimized.PLACES)
            found[number] = {n: blob for n, blob in tree.items() if place.files.get(n) != blob}
    return found


def _untrue(what: str) -> CompileError:
    return CompileError(
        f"another machine told of {what}",
        why="it cannot be true",
        remedy="use the same version of epctx on all machines; else report it",
    )
