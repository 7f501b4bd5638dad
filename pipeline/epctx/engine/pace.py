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


class Paced(Struct, frozen=True, kw_only=True):
    """What was measured of a model: seconds of a run on one input set; the largest resident size
    of its process, in bytes.
    """

    seconds: float
    peak_memory: int


class Pace(Struct, frozen=True, kw_only=True):
    """What is known of models' runs.

    Attributes:
        records: of the cache; None: nothing is remembered.
        compiled: of each model, in the order in which they are run, the key of its compile.
    """

    records: Records | None
    compiled: Mapping[str, Digest]

    def find(self, model: str) -> Paced | None:
        """What was measured last, on whatever host that was."""
        if self.records is None or model not in self.compiled:
            return None
        return self.records.read("pace", self._name(model), Paced)

    def note(self, model: str, measured: Paced) -> None:
        """Remember it.

        Raises:
            StorageError: the cache cannot be written.
        """
        if self.records is not None and model in self.compiled:
            self.records.write("pace", self._name(model), measured)

    def _name(self, model: str) -> str:
        return digest.of_json([str(self.compiled[model]), model]).hex


class Countdown:
    """What is told of the runs of one job, as its worker announces them."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._now: tuple[StageStarted, float] | None = None
        self._known: dict[str, Paced] = {}
        self._begun: dict[str, None] = {}
        self._told = -math.inf

    def announce(self, run: StageStarted, now: float) -> str | None:
        """A run begins, or, with a number beyond the last one, all of its model's have ended.

        Returns:
            What to tell; None: it was told a moment ago, or there is nothing.

        Raises:
            StorageError: the cache cannot be written.
        """
        model = run.model or ""
        self._measure(run, now)
        self._now = run, now
        self._begun[model] = None
        if run.number > run.of or now - self._told < _QUIET:
            return None
        self._told = now
        models = tuple(self._pace.compiled)
        which = f"model {len(self._begun)} of {len(models)}, {model}, " if len(models) > 1 else ""
        seconds = self._seconds(run)
        left = "" if seconds is None else f", about {words(seconds)} left"
        return f"numbers: {which}set {run.number} of {run.of}{left}"

    def _measure(self, run: StageStarted, now: float) -> None:
        if self._now is None or self._now[0].model != run.model:
            return
        before, since = self._now
        if run.number > before.number:
            seconds = (now - since) / (run.number - before.number)
            model = run.model or ""
            self._known[model] = Paced(seconds=seconds, peak_memory=run.peak_memory)
            self._pace.note(model, self._known[model])

    def _seconds(self, run: StageStarted) -> float | None:
        """Until all models are done, as far as something is known of this one."""
        model = run.model or ""
        own = self._known.get(model) or self._pace.find(model)
        if own is None:
            return None
        found = (run.of - run.number + 1) * own.seconds
        for other in self._pace.compiled.keys() - self._begun.keys():
            found += run.of * (self._pace.find(other) or own).seconds
        return found


def words(seconds: float) -> str:
    """A guess of a time, as exact as it is."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min"
