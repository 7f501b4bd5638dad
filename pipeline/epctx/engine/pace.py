"""How long runs of models take, and how large their process grows: measured, kept, and told."""

from __future__ import annotations

import math
from collections.abc import Mapping

from msgspec import Struct

from epctx.actions.action import StageStarted
from epctx.cache.records import Records
from epctx.files import digest
from epctx.files.digest import Digest

_QUIET = 2.0
"""Seconds between two things said of one job's runs."""


class RunTime(Struct, frozen=True, kw_only=True):
    """What was measured of a model: seconds of a run on one input set; the largest resident size
    of its process, in bytes.
    """

    seconds: float
    peak_memory: int


class RunTimes(Struct, frozen=True, kw_only=True):
    """What is known of models' runs.

    Attributes:
        records: of the cache; None: nothing is remembered.
        compiled: of each model, in the order in which they are run, the key of its compile.
    """

    records: Records | None
    compiled: Mapping[str, Digest]

    def find(self, model: str) -> RunTime | None:
        """What was measured last, on whatever host that was."""
        if self.records is None or model not in self.compiled:
            return None
        return self.records.read("pace", self._name(model), RunTime)

    def note(self, model: str, measured: RunTime) -> None:
        """Remember it.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self.records is not None and model in self.compiled:
            self.records.write("pace", self._name(model), measured)

    def _name(self, model: str) -> str:
        return digest.of_json([str(self.compiled[model]), model]).hex


class Eta:
    """The runs of one job, as they are announced: which one it is, and how long the rest takes."""

    def __init__(self, pace: RunTimes) -> None:
        self.measured: dict[str, float] = {}
        self._pace = pace
        self._now: tuple[StageStarted, float] | None = None
        self._begun: dict[str, None] = {}
        self._told = -math.inf

    def ended(self, now: float) -> None:
        """Note that the run that was announced last has ended."""
        if self._now is not None and self._now[0].number:
            self.measured[self._now[0].model or ""] = now - self._now[1]
        self._now = None

    def announce(self, run: StageStarted, now: float) -> str | None:
        """Note that a run begins, and return what to tell of it.

        Returns:
            None: it was told a moment ago, or models are loaded.
        """
        self.ended(now)
        self._now = run, now
        if not run.number:
            return None
        model = run.model or ""
        self._begun[model] = None
        if now - self._told < _QUIET:
            return None
        self._told = now
        models = tuple(self._pace.compiled)
        which = f"model {len(self._begun)} of {len(models)}, {model}, " if len(models) > 1 else ""
        seconds = self._seconds(run)
        left = "" if seconds is None else f", about {words(seconds)} left"
        return f"numbers: {which}set {run.number} of {run.of}{left}"

    def note(self, peak_memory: int) -> None:
        """Remember what was measured, with the size of the process that ran it.

        Raises:
            StorageError: the cache cannot be written.
        """
        for model, seconds in self.measured.items():
            self._pace.note(model, RunTime(seconds=seconds, peak_memory=peak_memory))

    def _seconds(self, run: StageStarted) -> float | None:
        """Guess when all models are done, as far as something is known of this one."""
        model = run.model or ""
        known = self._pace.find(model)
        own = self.measured.get(model, known.seconds if known else None)
        if own is None:
            return None
        found = (run.of - run.number + 1) * own
        for other in self._pace.compiled.keys() - self._begun.keys():
            paced = self._pace.find(other)
            found += run.of * (paced.seconds if paced else own)
        return found


def words(seconds: float) -> str:
    """A guess of a time, as exact as it is."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
