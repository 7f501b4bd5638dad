"""Builds in scratch of one model of one group, as it is or changed: what became of its numbers."""

from __future__ import annotations

import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import onnx
from msgspec.structs import replace

from epctx.actions.action import Action
from epctx.actions.optimize import Optimize
from epctx.actions.quantize import Quantize
from epctx.engine import build, plan, ranges
from epctx.engine.actions import optimize
from epctx.engine.executor import Machines, Scheduler, one
from epctx.engine.lookup import QUANTIZED
from epctx.engine.options import BuildOptions
from epctx.engine.report import GroupReport
from epctx.errors import EpctxError
from epctx.files.digest import Digest
from epctx.manifest import Manifest, ModelGroup, Target
from epctx.quantization.ranges import Ranges, owners, parse
from epctx.verification.findings import OutputNumbers
from epctx.worker.pool import Pool, own_logs

R = TypeVar("R")
_OPTIMIZED: Final = "optimized"


class Spent(Exception):
    """The budget is used up."""


@dataclass(kw_only=True)
class Trials:
    """Builds, one after the other, none of which leaves anything but its numbers.

    Attributes:
        known: the manifest whose calibrated ranges hold, too.
        deadline: by `time.monotonic`; no build but the first begins later. None: there is none.
        count: how many there were.
    """

    known: Manifest
    target: str
    folder: Path
    deadline: float | None = None
    count: int = field(default=0, init=False)
    _optimized: Digest | None = field(default=None, init=False)

    def build(self, group: ModelGroup) -> tuple[OutputNumbers, ...]:
        """The numbers of a build, within the tolerance or not.

        Raises:
            EpctxError: it failed before there were numbers.
            Spent: there is no time for it.
        """
        report, failure = self.run(group)
        numbers = report.verify.numbers if report.verify is not None else ()
        if failure is not None and all(each.passed for each in numbers):
            if str(self.folder) not in failure.remedy:
                raise failure
            advice = failure.remedy.rpartition("; its log: ")[0]  # the log goes with the build
            again = f"{advice}; `epctx build` keeps its log".removeprefix("; ")
            raise type(failure).of(failure.failure, remedy=again)
        return numbers

    def run(self, group: ModelGroup) -> tuple[GroupReport, EpctxError | None]:
        """What became of a build. Raises Spent: there is no time for it."""
        if self.count and self.deadline is not None and time.monotonic() >= self.deadline:
            raise Spent
        self.count += 1
        target = Target(name=self.target, groups=(group,), written={group.name: {}})
        with tempfile.TemporaryDirectory(dir=self.folder, ignore_cleanup_errors=True) as folder:
            made = Manifest(name="bisect", path=Path(folder, "m.yaml"), targets=(target,))
            there = ranges.place(self.known.path)
            if there.exists():
                shutil.copy(there, ranges.place(made.path))
            options, machines = BuildOptions(out=Path(folder, "dist"), jobs=1), Machines(Pool)
            report, failure = build.run(
                plan.make(made), options, listener=lambda event: None, machines=machines
            )
        return report.groups[0], failure

    def optimize(self, group: ModelGroup) -> Path:
        """The group's only model, optimized: its folder."""
        folder = self.folder / _OPTIMIZED
        job = Optimize.of(group.models[0], group.optimize, folder)
        self._optimized = optimize.run(job, self._carried_out).digest
        return folder

    def calibrate(self, group: ModelGroup) -> Ranges:
        """The ranges that the group's only model is quantized with, of tensors that have their own;
        none: it is not.
        """
        if group.quantize is None or not group.quantize.calibrated:
            return {}
        assert self._optimized is not None
        job = replace(
            Quantize.of(group, self._optimized, (), None),
            name=group.models[0].name,
            optimized=self.folder / _OPTIMIZED,
            folder=self.folder / "quantized",
        )
        result = self._carried_out(job)
        owned = owners(onnx.load(job.folder / QUANTIZED, load_external_data=False))
        every = parse(result.ranges or "{}").items()
        found = {name: both for name, both in every if owned.get(name, ("", 0))[0] == name}
        given = {name: each.range for name, each in group.quantize.overrides.items()}
        return {**found, **{name: both for name, both in given.items() if both is not None}}

    def _carried_out(self, job: Action[R]) -> R:
        pool = Pool(work=self.folder / f"work-{type(job).__name__}", logs=own_logs())
        with Scheduler(pool), pool.lease(None) as lease:
            return one(lease, job)
