"""What differs between two sides, causes before effects, down to the node."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from epctx.commands.diff.result import Changed, ChangedFile, Comparison
from epctx.commands.diff.sides import Side, golden_of, kinds_of_host, side
from epctx.errors import EpctxError, ModelError
from epctx.graph.diff import bytewise
from epctx.graph.weights.data_file import DataFile
from epctx.keys.changes import between
from epctx.lockfile import hosts
from epctx.lockfile.differences import between_locks
from epctx.providers.hooks import BinaryInfo
from epctx.stages.report import ModelReport


def diff(old: Path, new: Path) -> Comparison:
    """Compare two builds, two locks, or a build and a lock; as `api.diff`. Raises OSError, too."""
    return compare(side(old), side(new))


def compare(old: Side, new: Side) -> Comparison:
    """What differs between two sides, which are told by their names. Raises OSError, too."""
    kinds = tuple(_hosts(old, new))
    (old, new), *more = kinds_of_host(old, new)
    files = (*_files(old, new), *_of_other_hosts(old, new, more))
    both = old.files.keys() & new.files.keys()
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
        same_files=sum(old.files[name] == new.files[name] for name in both),
        not_compared=tuple(_not_compared(old, new)),
    )


def _hosts(old: Side, new: Side) -> Iterator[Changed]:
    """The kinds of host that only one of two lock files has outputs of, where one has several."""
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
    """Files of further kinds of host, under the name of the kind."""
    told = {(each.file, each.old, each.new) for each in _files(old, new)}
    for one, other in more:
        assert one.lock is not None
        kind = hosts.name(hosts.kind(one.lock))
        for each in _files(one, other):
            if (each.file, each.old, each.new) not in told:
                yield replace(each, file=f"{each.file} ({kind})")


def _locks(old: Side, new: Side) -> Iterator[Changed]:
    """Toolchain, host, sources and settings; files are told as files."""
    if old.lock is None or new.lock is None:
        return
    for each in between_locks(old.lock, new.lock):
        if each.kind != "output":
            yield Changed(area=each.kind, where=each.where, what=each.what)


def _partitions(old: Side, new: Side) -> Iterator[Changed]:
    """Who took which nodes, and what the passes changed, of the models of both."""
    for name in sorted((old.models or {}).keys() & (new.models or {}).keys()):
        assert old.models is not None and new.models is not None
        for change in between(*map(_plain, (old.models[name], new.models[name]))):
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
    for name in sorted({*old.files, *new.files}):
        if golden_of(name) in old.golden ^ new.golden:
            continue  # one of them did not ask for any
        one, other = old.files.get(name), new.files.get(name)
        if one != other:
            told = None
            if one is not None and other is not None and old.folder and new.folder:
                told = _bytes(old.folder / name, new.folder / name)
            yield ChangedFile(file=name, old=one, new=other, difference=told)


def _bytes(old: Path, new: Path) -> str | None:

    return bytewise.words(*(DataFile.open(path).view() for path in (old, new)))


def _inside(old: Side, new: Side, file: ChangedFile) -> Iterator[Changed]:
    """What differs inside a file that both have on this disk."""
    if file.difference is None or old.folder is None or new.folder is None:
        return
    paths = (old.folder / file.file, new.folder / file.file)
    if file.file.endswith(".onnx"):
        from epctx.graph.diff import divergence

        try:
            found = divergence.between(*paths)
        except ModelError as error:
            yield Changed(area="model", where=file.file, what=f"cannot be read: {error.what}")
            return
        for each in found:
            yield Changed(area=each.part, where=f"{file.file}: {each.where}", what=each.what)
        return
    infos = tuple(_binary(path) for path in paths)
    if None not in infos:
        for change in between(*infos):
            yield Changed(area="binary", where=file.file, what=str(change))


def _binary(path: Path) -> BinaryInfo | None:
    """What a context binary says of itself; None: nobody here can read it."""
    from epctx.commands.inspect import command

    try:
        found = command.inspect(path).binary
    except EpctxError:
        return None
    return found.info if found is not None else None


def _not_compared(old: Side, new: Side) -> Iterator[str]:
    for one, other in ((old, new), (new, old)):
        if extra := len(other.golden - one.golden):
            groups = f"{extra} group{'s' * (extra != 1)}"
            yield f"golden files of {groups}: {one.name} was made without `--golden`"
        if one.lock is None and other.lock is not None:
            yield f"toolchain, sources and settings: {one.name} has no lock or report"
        if one.models is None and other.models is not None:
            yield f"partitions: {one.name} has no report"
        if one.folder is None and other.folder is not None:
            yield f"nodes and attributes: the files of {one.name} are not here"
