"""What `epctx diff` is asked about: a folder of outputs, a report, or a lock."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile as lock
from epctx.commands.report import command
from epctx.engine.report import BuildReport
from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.files import digest, listing
from epctx.files.outputs import GOLDEN, SIGNATURE, SUMS
from epctx.lockfile import hosts
from epctx.lockfile.types import Lock, LockedFile
from epctx.stages.report import ModelReport

_REMEDY = "name what `epctx build` wrote: `dist/<name>`, its .build.json, or the .lock.yaml"


class Side(Struct, frozen=True, kw_only=True):
    """One of the two.

    Attributes:
        name: as the user named it.
        lock: None: of a folder without report, or of a build that failed.
        models: who took which nodes, by `<target>/<group>/<model>`; None: it is a lock.
        folder: has `<target>/<group>` with files; None: it is a lock, or they are gone.
        files: by `<target>/<group>/<name>`, from the disk if they are there, else from the lock.
        golden: the `<target>/<group>` whose golden files were asked for.
    """

    name: str
    lock: Lock | None
    models: Mapping[str, ModelReport] | None
    folder: Path | None
    files: Mapping[str, LockedFile]
    golden: frozenset[str] = frozenset()

    @property
    def is_lock(self) -> bool:
        """It is a lock file alone, which may be of several kinds of host."""
        return self.lock is not None and self.models is None


def kinds_of_host(old: Side, new: Side) -> list[tuple[Side, Side]]:
    """The two sides for each kind of host that both have outputs of; if there is none, for one."""
    one, other = (() if s.lock is None else hosts.kinds(s.lock) for s in (old, new))
    both = [(kind, kind) for kind in one if kind in other]
    return [(_on(old, a), _on(new, b)) for a, b in both or [((*one, {})[0], (*other, {})[0])]]


def _on(side: Side, kind: hosts.Kind) -> Side:
    if side.lock is None or not side.lock.hosts:
        return side
    lock = hosts.on(side.lock, kind)
    return replace(side, lock=lock, files=_locked(lock))


def golden_of(file: str) -> str | None:
    """The group of a golden file, of the others None."""
    group, found, _ = file.partition(f"/{GOLDEN}/")
    return group if found else None


def side(path: Path) -> Side:
    """What is at a path.

    Raises:
        UsageError: there is nothing, or nothing that can be compared.
        LockError: it is no lock that can be read.
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
    return Side(name=path.as_posix(), lock=locked, models=None, folder=None, files=_locked(locked))


def _of_folder(path: Path) -> Side:
    """A build by its `dist`, or `dist/<name>`; or any folder with group folders."""
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
        raise UsageError("has no build in it", file=path.as_posix(), remedy=_REMEDY)
    golden = frozenset(group for file in files if (group := golden_of(file)) is not None)
    name = path.as_posix()
    return Side(name=name, lock=None, models=None, folder=path, files=files, golden=golden)


def _of_build(path: Path, report: BuildReport, folder: Path) -> Side:
    files = _on_disk(folder) if folder.is_dir() else {}
    return Side(
        name=path.as_posix(),
        lock=report.lock,
        models={
            f"{group.target}/{group.group}/{model.name}": model
            for group in report.groups
            for model in group.models
        },
        folder=folder if files else None,
        files=files or (_locked(report.lock) if report.lock is not None else {}),
        golden=frozenset(f"{each.target}/{each.group}" for each in report.groups if each.golden),
    )


def _on_disk(folder: Path) -> dict[str, LockedFile]:
    """Every file of every folder with sums, but the sums themselves."""
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
