"""The input sets that a manifest asks for, `verify.inputs`: the same wherever models are run.

The worker that compiles runs its generating sessions on them, and verify runs the files on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from epctx.errors import ManifestError
from epctx.graph.inputs import InputSpec
from epctx.manifest import VerifyInputs
from epctx.runtime import feed_files, feeds
from epctx.runtime.feed_files import InputSet
from epctx.runtime.feeds import Feeds
from epctx.text import did_you_mean


@dataclass(frozen=True, kw_only=True)
class Case:
    """One input set for one model. `label`: `seed 0, set 1`, or the file's or folder's name."""

    label: str
    feeds: Feeds


class InputSets:
    """The input sets of a model group: generated, or read from files once.

    Files are given to every model of the group whose inputs they fit.

    Raises:
        ModelError: a file is missing or broken.
    """

    def __init__(self, settings: VerifyInputs) -> None:
        self._settings = settings
        self._files = feed_files.read(settings.files)
        self._misfits: dict[str, ManifestError] = {}
        self._used: set[str] = set()
        self._inputs: set[str] = set()

    @property
    def generated(self) -> bool:
        """Whether values are generated, not read."""
        return not self._settings.files

    def problems(self, inputs: Sequence[InputSpec]) -> list[str]:
        """Why a model's input sets cannot be generated; nothing if they can, or are read."""
        return feeds.problems(inputs, count=self._settings.count) if self.generated else []

    def cases(self, inputs: Sequence[InputSpec]) -> Iterator[Case]:
        """The input sets of a model, one after the other.

        Raises:
            ManifestError: a range does not fit its input.
        """
        self._inputs.update(spec.name for spec in inputs)
        if self.generated:
            for index in range(self._settings.count):
                yield self.case(inputs, index)
            return
        for values in self._files:
            feeds_ = self._fit(values, inputs)
            if feeds_ is not None:
                yield Case(label=values.label, feeds=feeds_)

    def another(self, inputs: Sequence[InputSpec]) -> Case | None:
        """One more than `cases` gives, where that is one: whether outputs depend on inputs is told
        by two. None: there is none.
        """
        if not (self.generated and inputs) or self._settings.count > 1:
            return None
        return self.case(inputs, 1)

    def case(self, inputs: Sequence[InputSpec], index: int) -> Case:
        """Generated input set number `index`."""
        settings = self._settings
        generated = feeds.generate(inputs, seed=settings.seed, index=index, ranges=settings.ranges)
        return Case(label=f"seed {settings.seed}, set {index}", feeds=generated)

    def refuse_unused(self, others: Iterable[Sequence[InputSpec]] = ()) -> None:
        """After all models of the group: everything in `verify.inputs` was for one of them.

        Args:
            others: the inputs of each model of the group that no cases were asked for.

        Raises:
            ManifestError: a file fits no model, or a range is for no input of any.
        """
        for inputs in others:
            self._inputs.update(spec.name for spec in inputs)
            for values in self._files:
                self._fit(values, inputs)
        for name in self._settings.ranges:
            if name not in self._inputs:
                raise ManifestError(
                    f'a range is given for "{name}", which is no input of any model of the group',
                    where="verify.inputs.ranges",
                    remedy=did_you_mean(name, self._inputs),
                )
        for values in self._files:
            if values.label not in self._used and values.label in self._misfits:
                raise self._misfits[values.label]

    def _fit(self, values: InputSet, inputs: Sequence[InputSpec]) -> Feeds | None:
        try:
            fitted = feed_files.fit(values, inputs)
        except ManifestError as error:
            self._misfits.setdefault(values.label, error)
            return None
        self._used.add(values.label)
        return fitted
