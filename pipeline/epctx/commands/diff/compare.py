"""Compare two builds, two locks, or a build and a lock, from causes to effects, node by node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile as lock
from epctx.commands.report import command
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import EpctxError, ModelError, UsageError
from epctx.files import digest, listing
from epctx.files.outputs import GOLDEN, SIGNATURE, SUMS
from epctx.graph.weights import data_file
from epctx.graph.weights.data_file import DataFile
from epctx.keys.records import between
from epctx.lockfile import hosts
from epctx.lockfile.differences import between_locks
from epctx.lockfile.types import Lock, LockedFile
from epctx.providers.base import BinaryInfo
from epctx.stages.report import ModelReport
from epctx.text import Brief

_REMEDY = "name what `epctx build` wrote: `dist/<name>`, its .build.json, or the .lock.yaml"

Area = Literal[
    "toolchain", "host", "source", "setting", "code", "key", "partition", "binary",
    "metadata", "model", "node", "attribute", "tensor",
]  # fmt: skip
"""Areas of differences: causes first, then their effects."""


class Changed(Struct, frozen=True, kw_only=True):
    """A difference other than the bytes of a file.

    Attributes:
        area: toolchain, host, source and setting are causes. code (of epctx) and key (of an action)
            appear only if no cause is known. partition is the assignment of nodes to EPs. binary is
            the description inside a context binary. The other areas are parts of a model file;
            metadata does not affect what the model computes.
        where: the source, EP, group or model that differs, or the place in a file.
        what: old and new value, in words.
    """

    area: Area
    where: str
    what: str


class ChangedFile(Struct, frozen=True, kw_only=True):
    """File that differs, or that only one side has.

    Attributes:
        file: `<target>/<group>/<name>`, followed by the kind of host if a lock has several.
        old, new: the file on each side; None if that side does not have it.
        difference: the first difference in bytes; None if the file of one side is not on this disk.
    """

    file: str
    old: LockedFile | None
    new: LockedFile | None
    difference: str | None = None


class Comparison(Brief, frozen=True, kw_only=True):
    """Result of a comparison.

    Attributes:
        old, new: the sides as the user named them.
        same: True if all facts that both sides have are equal.
        same_files: number of files that are equal on both sides.
        not_compared: facts that only one side has, in words.
    """

    old: str
    new: str
    same: bool
    differences: tuple[Changed, ...]
    files: tuple[ChangedFile, ...]
    same_files: int
    not_compared: tuple[str, ...] = ()


class Side(Struct, frozen=True, kw_only=True):
    """One side of a comparison.

    Attributes:
        name: the side as the user named it.
        lock: lock of the side; None for a folder without a report and for a failed build.
        report: build report of the side; None for a lock and for a folder without a report.
        folder: folder that holds `<target>/<group>`; None for a lock, or if the files are gone.
        files: files by `<target>/<group>/<name>`, from the disk if they exist there, else from the
            lock.
    """

    name: str
    files: Mapping[str, LockedFile]
    lock: Lock | None = None
    report: BuildReport | None = None
    folder: Path | None = None

    @property
    def is_lock(self) -> bool:
        """Tell whether the side is a bare lock file, which may cover several kinds of host."""
        return self.lock is not None and self.report is None

    @property
    def models(self) -> dict[str, ModelReport]:
        """Models of the report by `<target>/<group>/<model>`."""
        groups = () if self.report is None else self.report.groups
        return {f"{g.target}/{g.group}/{model.name}": model for g in groups for model in g.models}

    @property
    def golden(self) -> frozenset[str]:
        """`<target>/<group>` of every group that was built with golden files."""
        if self.is_lock:
            return frozenset()
        if self.report is None:
            return frozenset(group for file in self.files if (group := _golden_group(file)))
        return frozenset(
            f"{each.target}/{each.group}" for each in self.report.groups if each.golden
        )


def _kinds_of_host(old: Side, new: Side) -> list[tuple[Side, Side]]:
    """Pair the sides for each common kind of host; without one, pair the first kinds."""
    old_kinds, new_kinds = (() if s.lock is None else hosts.kinds(s.lock) for s in (old, new))
    common = [(kind, kind) for kind in old_kinds if kind in new_kinds]
    return [
        (_on(old, a), _on(new, b))
        for a, b in common or [((*old_kinds, {})[0], (*new_kinds, {})[0])]
    ]


def _on(side: Side, kind: hosts.Kind) -> Side:
    if side.lock is None or not side.lock.hosts:
        return side
    lock = hosts.on(side.lock, kind)
    return replace(side, lock=lock, files=_locked(lock))


def _golden_group(file: str) -> str | None:
    """Return the group of a golden file; None for other files."""
    group, separator, _ = file.partition(f"/{GOLDEN}/")
    return group if separator else None


def side(path: Path) -> Side:
    """Read one side from a path: a lock, a report, or a folder of outputs.

    Raises:
        UsageError: the path does not exist, or holds nothing that can be compared.
        LockError: the lock cannot be read.
    """
    if path.is_dir():
        with UsageError.if_refused("cannot be read", file=path.as_posix(), remedy=_REMEDY):
            return _of_folder(path)
    if not path.exists():
        raise UsageError(
            "does not exist", file=path.as_posix(), remedy=_REMEDY, code=Code.NO_SUCH_PATH
        )
    if path.suffix == ".json":
        report = command.read(path)
        return _of_build(path, report, path.parent / report.name)
    locked = lock.read(path)
    return Side(name=path.as_posix(), lock=locked, files=_locked(locked))


def _of_folder(path: Path) -> Side:
    """Read a build from its `dist`, from `dist/<name>`, or from any folder with group folders."""
    beside = path.resolve().with_name(f"{path.resolve().name}.build.json")
    if beside.is_file():
        return _of_build(path, command.read(beside), path)
    reports = sorted(path.glob("*.build.json"))
    if len(reports) > 1:
        names = ", ".join(f"{path.as_posix()}/{each.name}" for each in reports)
        raise UsageError(
            "has the builds of several manifests",
            file=path.as_posix(),
            remedy=f"name one: {names}",
        )
    if reports:
        report = command.read(reports[0])
        return _of_build(path, report, path / report.name)
    files = _on_disk(path)
    if not files:
        raise UsageError("contains no build", file=path.as_posix(), remedy=_REMEDY)
    return Side(name=path.as_posix(), folder=path, files=files)


def _of_build(path: Path, report: BuildReport, folder: Path) -> Side:
    files = _on_disk(folder) if folder.is_dir() else {}
    return Side(
        name=path.as_posix(),
        lock=report.lock,
        report=report,
        folder=folder if files else None,
        files=files or (_locked(report.lock) if report.lock is not None else {}),
    )


def _on_disk(folder: Path) -> dict[str, LockedFile]:
    """List all files of each folder that has a SHA256SUMS, without the SHA256SUMS."""
    return {
        path.relative_to(folder).as_posix(): LockedFile(
            size=path.stat().st_size, sha256=digest.of_file(path, "sha256").hex
        )
        for sums in sorted(path for path in listing.below(folder) if path.name == SUMS)
        for path in sorted(sums.parent.iterdir())
        if path.is_file() and path.name not in (SUMS, SIGNATURE)
    }


def _locked(locked: Lock) -> dict[str, LockedFile]:
    return {
        f"{name}/{file}": facts
        for name, outputs in locked.folders.items()
        for file, facts in outputs.items()
    }


def compare(old: Side, new: Side) -> Comparison:
    """Compare two sides. Raises OSError if a file cannot be read."""
    kinds = tuple(_hosts(old, new))
    (old, new), *more = _kinds_of_host(old, new)
    files = (*_files(old, new), *_of_other_hosts(old, new, more))
    common = old.files.keys() & new.files.keys()
    differences = (
        *kinds,
        *_locks(old, new),
        *_partitions(old, new),
        *(change for file in files for change in _inside(old, new, file)),
    )
    return Comparison(
        old=old.name,
        new=new.name,
        same=not files and not differences,
        differences=differences,
        files=files,
        same_files=sum(old.files[name] == new.files[name] for name in common),
        not_compared=tuple(not_compared(old, new)),
    )


def _hosts(old: Side, new: Side) -> Iterator[Changed]:
    """Kinds of host with outputs in only one of two lock files, if a file has several kinds."""
    if old.lock is None or new.lock is None or not (old.is_lock and new.is_lock):
        return
    if not (old.lock.hosts or new.lock.hosts):
        return
    before, after = (hosts.kinds(side.lock) for side in (old, new) if side.lock is not None)
    for kind in after:
        if kind not in before:
            yield Changed(area="host", where=hosts.name(kind), what="has outputs in the lock now")
    for kind in before:
        if kind not in after:
            what = "has no outputs in the lock any more"
            yield Changed(area="host", where=hosts.name(kind), what=what)


def _of_other_hosts(
    old: Side, new: Side, more: Sequence[tuple[Side, Side]]
) -> Iterator[ChangedFile]:
    """Files for the other kinds of host, labelled with the kind."""
    listed = {(each.file, each.old, each.new) for each in _files(old, new)}
    for one, other in more:
        assert one.lock is not None
        kind = hosts.name(hosts.kind(one.lock))
        for each in _files(one, other):
            if (each.file, each.old, each.new) not in listed:
                yield replace(each, file=f"{each.file} ({kind})")


def _locks(old: Side, new: Side) -> Iterator[Changed]:
    """Differences of toolchain, host, sources and settings; `_files` compares the files."""
    if old.lock is None or new.lock is None:
        return
    for each in between_locks(old.lock, new.lock):
        if each.kind != "output":
            yield Changed(area=each.kind, where=each.where, what=each.what)


def _partitions(old: Side, new: Side) -> Iterator[Changed]:
    """Differences in the assignment of nodes and in the passes, for models on both sides."""
    before, after = old.models, new.models
    for name in sorted(before.keys() & after.keys()):
        for change in between(*map(_plain, (before[name], after[name]))):
            yield Changed(area="partition", where=name, what=str(change))


def _plain(model: ModelReport) -> Mapping[str, object]:
    return {
        "nodes": model.nodes,
        "coverage": model.coverage,
        "passes": {record.name: dict(record.changed) for record in model.passes},
        "partitions": model.partitions,
        "left to the default EP": {
            f"{node.node or node.op_type} ({node.op_type})": dict(node.reasons)
            for node in model.declined
        },
    }


def _files(old: Side, new: Side) -> Iterator[ChangedFile]:
    on_one_side = old.golden ^ new.golden
    for name in sorted({*old.files, *new.files}):
        if _golden_group(name) in on_one_side:
            continue  # the other build was made without `--golden`
        one, other = old.files.get(name), new.files.get(name)
        if one != other:
            difference = None
            if one is not None and other is not None and old.folder and new.folder:
                paths = old.folder / name, new.folder / name
                difference = data_file.difference(*(DataFile.open(path).view() for path in paths))
            yield ChangedFile(file=name, old=one, new=other, difference=difference)


def _inside(old: Side, new: Side, file: ChangedFile) -> Iterator[Changed]:
    """Differences inside a file that both sides have on this disk."""
    if file.difference is None or old.folder is None or new.folder is None:
        return
    paths = (old.folder / file.file, new.folder / file.file)
    if file.file.endswith(".onnx"):
        from epctx.graph import diff

        try:
            divergences = diff.between(*paths)
        except ModelError as error:
            yield Changed(area="model", where=file.file, what=f"cannot be read: {error.what}")
            return
        for each in divergences:
            yield Changed(area=each.part, where=f"{file.file}: {each.where}", what=each.what)
        return
    infos = tuple(_binary(path) for path in paths)
    if None not in infos:
        for change in between(*infos):
            yield Changed(area="binary", where=file.file, what=str(change))


def _binary(path: Path) -> BinaryInfo | None:
    """Read the description inside a context binary; None if this host cannot read it."""
    from epctx.commands.inspect import command as inspection

    try:
        binary = inspection.inspect(path).binary
    except EpctxError:
        return None
    return binary.info if binary is not None else None


def not_compared(old: Side, new: Side) -> Iterator[str]:
    """Facts that only one side has, each with the reason why the other side lacks it."""
    for one, other in ((old, new), (new, old)):
        if extra := len(other.golden - one.golden):
            groups = f"{extra} group{'s' * (extra != 1)}"
            yield f"golden files of {groups}: {one.name} was made without `--golden`"
        if one.lock is None and other.lock is not None:
            yield f"toolchain, sources and settings: {one.name} has no lock or report"
        if one.report is None and other.report is not None:
            yield f"partitions: {one.name} has no report"
        if one.folder is None and other.folder is not None:
            yield f"nodes and attributes: the files of {one.name} are missing"
