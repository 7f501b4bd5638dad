"""`epctx reproduce`: build twice, compare, and find variations that cause a difference."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epctx import lockfile
from epctx.commands.reproduce import child, variations
from epctx.commands.reproduce.child import FinishedBuild, Request
from epctx.commands.reproduce.result import (
    FileComparison,
    Reproduction,
    Variation,
    VariationName,
    Verdict,
    compare_folders,
)
from epctx.commands.reproduce.variations import Circumstances
from epctx.engine import plan as planning
from epctx.engine.events import Listener
from epctx.engine.lock.locked_mode import unstable_eps
from epctx.engine.plan import Plan
from epctx.error_codes import Code
from epctx.errors import EpctxError, StorageError, UsageError
from epctx.lockfile import hosts
from epctx.lockfile.differences import Difference, between_locks, causes_between, part_of
from epctx.lockfile.types import Lock


def reproduce(
    path: Path,
    *,
    only: Sequence[str],
    jobs: int,
    vary: Collection[VariationName],
    find_cause: bool,
    out: Path | None,
    allow_outside: bool,
    listener: Listener,
) -> Reproduction:
    """Build a manifest twice and compare, as described in `api.reproduce`."""
    plan = planning.read(path, only=only, allow_outside=allow_outside)
    with _root(out) as root:
        plain = Request(
            title="first",
            manifest=plan.manifest,
            only=tuple(only),
            allow_outside=allow_outside,
            circumstances=Circumstances(jobs=jobs),
        )
        return _Both(plan, plain, root, listener).compare(vary, find_cause=find_cause)


@contextmanager
def _root(out: Path | None) -> Iterator[Path]:
    """Yield the folder of all builds: the user's, or a temporary one.

    The temporary folder is kept if an error names a log in it.
    """
    if out is not None:
        if out.exists() and (not out.is_dir() or any(out.iterdir())):
            raise UsageError(
                "already exists, and is not empty",
                file=str(out),
                remedy="name a new folder with --out",
                code=Code.IN_THE_WAY,
            )
        with StorageError.if_refused(
            "cannot be created", file=str(out), remedy="name another folder"
        ):
            out.mkdir(parents=True, exist_ok=True)
        yield out.resolve()
        return
    root = Path(tempfile.mkdtemp(prefix="epctx-reproduce-")).resolve()
    if sys.platform != "win32" and os.geteuid() == 0:
        root.chmod(0o711)  # another user must be able to build in it
    try:
        yield root
    except EpctxError as error:
        if str(root) not in str(error):
            _remove(root)
        raise
    except BaseException:
        _remove(root)
        raise
    _remove(root)


def _remove(root: Path) -> None:
    """Remove a folder, and retry while ending processes may still write into it."""
    for _ in range(20):
        shutil.rmtree(root, ignore_errors=True)
        if not root.exists():
            return
        time.sleep(0.1)


class _Both(Struct, frozen=True):
    """All builds of one call; `plain` is the request of the first."""

    plan: Plan
    plain: Request
    root: Path
    listener: Listener

    def compare(self, vary: Collection[VariationName], *, find_cause: bool) -> Reproduction:
        old = lockfile.find(lockfile.place(self.plan.manifest.path))
        first = child.build(self.plain, self.root, self.listener)
        second, variations = self._varied(vary, "second", first)
        files = compare_folders(first.outputs, second.outputs)
        differences = _between(first, second)
        verdict, lock_differences = judged(old, first.report.lock, self.plan)
        changed_groups = {f.file.rpartition("/")[0] for f in files if f.state == "payload differs"}
        same = all(file.state == "identical" for file in files) and not differences
        causes: tuple[VariationName | Literal["nothing"], ...] = ()
        if not same and find_cause:
            applied = [each.name for each in variations if each.obstacle is None]
            causes = tuple(self._causes(first, files, applied))
        return Reproduction(
            name=self.plan.manifest.name,
            reproducible=same and verdict != "differs",
            variations=variations,
            files=files,
            differences=differences,
            causes=causes,
            known=tuple(unstable_eps(self.plan, changed_groups)),
            lock=verdict,
            lock_differences=lock_differences,
            seconds=(first.report.seconds, second.report.seconds),
        )

    def _varied(
        self,
        vary: Collection[VariationName],
        title: str,
        first: FinishedBuild,
        only: tuple[str, ...] | None = None,
    ) -> tuple[FinishedBuild, tuple[Variation, ...]]:
        folder = child.place(self.root, elsewhere="path" in vary)
        varied, circumstances = variations.vary(
            vary, folder=folder, jobs=self.plain.circumstances.jobs
        )
        request = replace(
            self.plain,
            title=title,
            only=self.plain.only if only is None else only,
            circumstances=circumstances,
        )
        finished = child.build(request, self.root, self.listener)
        obstacles = dict(finished.obstacles)
        if "file-order" in vary and only is None and finished.listing == first.listing:
            obstacles["file-order"] = "the file system lists files in an order of its own"
        return finished, variations.hindered(varied, obstacles)

    def _causes(
        self,
        first: FinishedBuild,
        files: Sequence[FileComparison],
        applied: Sequence[VariationName],
    ) -> Iterator[VariationName | Literal["nothing"]]:
        """Find variations that alone cause a difference, by one build of differing groups each."""
        labels = [file.file for file in files if file.state != "identical"]
        only = child.only_of(labels) or self.plain.only
        names: list[VariationName | Literal["nothing"]] = ["nothing", *applied]
        for name in names:
            title = f"with {name} varied"
            finished, _ = self._varied([] if name == "nothing" else [name], title, first, only)
            folders = {part.rpartition("/")[0] for part in labels}
            for folder in folders:
                pair = (first.outputs / folder, finished.outputs / folder)
                if any(each.state != "identical" for each in compare_folders(*pair)):
                    yield name
                    break
            with contextlib.suppress(OSError):
                shutil.rmtree(self.root / title)


def _between(first: FinishedBuild, second: FinishedBuild) -> tuple[Difference, ...]:
    """Differences between the locks of two builds of one manifest."""
    one, other = first.report.lock, second.report.lock
    assert one is not None and other is not None
    differences = between_locks(one, other)
    if not differences and lockfile.text(one) != lockfile.text(other):
        differences = (Difference(kind="key", where="lock", what="is written differently"),)
    return differences


def judged(
    old: Lock | None, new: Lock | None, plan: Plan
) -> tuple[Verdict, tuple[Difference, ...]]:
    """Compare a build with the lock beside the manifest."""
    if old is None or new is None:
        return "no lock", ()
    host, views = hosts.kind(new), hosts.views(old)
    covered = new.folders.keys().isdisjoint(hosts.lacking(old, host))
    old = hosts.on(old, host) if covered else views[0]
    if not plan.whole:
        groups = {f"{p.target}/{p.group.name}" for p in plan.groups}
        old = part_of(old, groups, {f"{c.target}/{c.composition.name}" for c in plan.compositions})
    differences = between_locks(old, new)
    if not differences:
        return "the same", ()
    if not any(each.kind == "output" for each in differences):
        return "the same outputs", differences
    if all(each.kind in ("host", "code", "output") for each in differences) and causes_between(
        old, new
    ):
        return "made on another host", differences
    return "differs", differences
