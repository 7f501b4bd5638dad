"""The input sets of `verify.inputs` in a manifest, which are the same wherever models are run.

The worker that compiles runs its generating sessions on them, and verify runs the files on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec import Struct, field

from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.graph.inputs import InputSpec
from epctx.inference import feeds
from epctx.inference.feeds import Feeds, InputSet
from epctx.manifest import VerifyInputs
from epctx.text import did_you_mean
from epctx.verification.numbers import sizes
from epctx.verification.numbers.sizes import Runs, Sizes


class Case(Struct, frozen=True, kw_only=True):
    """One input set for one model. `label`: `seed 0, set 1`, or the file's or folder's name.

    Attributes:
        sizes: sizes of the model's open dimensions.
    """

    label: str
    feeds: Feeds
    sizes: Sizes = field(default_factory=dict)


class InputSets:
    """The input sets of a model group: generated, or read from files once.

    Files are given to every model of the group whose inputs they fit.

    Raises:
        ModelError: a file is missing or broken.
    """

    def __init__(self, settings: VerifyInputs) -> None:
        self._settings = settings
        self._files = feeds.read(settings.files, key="verify.inputs.files")
        self._misfits: dict[str, ManifestError] = {}
        self._used: set[str] = set()
        self._inputs: set[str] = set()
        self._open: set[str] = set()

    @property
    def generated(self) -> bool:
        """Return whether values are generated, not read."""
        return not self._settings.files

    def problems(self, inputs: Sequence[InputSpec]) -> list[str]:
        """Return why a model's input sets cannot be generated; empty if they can, or are read.

        An open dimension is not a problem: callers of `cases` know the sizes.
        """
        if not self.generated:
            return []
        least = sizes.fixed(inputs, dict.fromkeys(sizes.open_names(inputs), 1))
        return feeds.problems(least, count=self._settings.count)

    def remedy(self, inputs: Sequence[InputSpec]) -> str:
        """Return the remedy for problems."""
        never = (spec.remedy for spec in inputs)
        return next(filter(None, never), "give values with `verify.inputs.files`")

    def sizes(self, inputs: Sequence[InputSpec], runs: Runs) -> tuple[Sizes, ...]:
        """Return the manifest's sets of sizes of a model's open dimensions; one empty set if
        nothing is open, or inputs come from files. Raises NotFound.
        """
        if not self.generated or not sizes.open_names(inputs):
            return ({},)
        return sizes.choose(inputs, self._settings.dimensions, runs)

    def cases(
        self, inputs: Sequence[InputSpec], size_sets: Sequence[Sizes] = ({},)
    ) -> Iterator[Case]:
        """Yield the input sets of a model.

        Args:
            inputs: the model's inputs.
            size_sets: sets of sizes of its open dimensions; all input sets are made for each.

        Raises:
            ManifestError: a range does not fit its input.
        """
        self.note(inputs)
        if self.generated:
            for each in size_sets:
                for index in range(self._settings.count):
                    yield self.case(inputs, index, each)
            return
        for values in self._files:
            feeds_ = self._fit(values, inputs)
            if feeds_ is not None:
                yield Case(label=values.label, feeds=feeds_)

    @property
    def count(self) -> int:
        """Number of input sets; a model may not take all of them."""
        return self._settings.count if self.generated else len(self._files)

    def nth(
        self, inputs: Sequence[InputSpec], index: int, size_sets: Sequence[Sizes] = ({},)
    ) -> Iterator[Case]:
        """Yield the cases of input set `index`, from 0 on; raises as `cases`."""
        if self.generated:
            yield from (self.case(inputs, index, each) for each in size_sets)
            return
        feeds_ = self._fit(self._files[index], inputs)
        if feeds_ is not None:
            yield Case(label=self._files[index].label, feeds=feeds_)

    def another(self, inputs: Sequence[InputSpec]) -> Case | None:
        """Return a second case if `cases` gives only one, since two cases show whether outputs
        depend on inputs; None if there is no second case.
        """
        if not (self.generated and inputs) or self._settings.count > 1:
            return None
        return self.case(inputs, 1)

    def case(self, inputs: Sequence[InputSpec], index: int, at: Sizes | None = None) -> Case:
        """Generate input set number `index`, at sizes of open dimensions."""
        settings, at = self._settings, at or {}
        generated = feeds.generate(
            sizes.fixed(inputs, at), seed=settings.seed, index=index, ranges=settings.ranges
        )
        label = f"seed {settings.seed}, set {index}"
        return Case(label=f"{label}, {sizes.words(at)}" if at else label, feeds=generated, sizes=at)

    def refuse_unused(self, others: Iterable[Sequence[InputSpec]] = ()) -> None:
        """Require that a model uses each entry of `verify.inputs`. Call it after all models of the
        group.

        Args:
            others: inputs of each model of the group for which no cases were made.

        Raises:
            ManifestError: a file fits no model, a range names no input of any model, or a size
                names no open dimension of any model.
        """
        for inputs in others:
            self.note(inputs)
            for values in self._files:
                self._fit(values, inputs)
        for _, _, error in self.unknown():
            raise error
        for values in self._files:
            if values.label not in self._used and values.label in self._misfits:
                raise self._misfits[values.label]

    def unknown(self) -> Iterator[tuple[str, str, ManifestError]]:
        """Yield the names in `ranges` and `dimensions` that no model has: key, name and error."""
        for name in self._settings.ranges:
            if name not in self._inputs:
                message = (
                    f'a range is given for "{name}", which is no input of any model of the group'
                )
                yield "ranges", name, _unknown("ranges", message, did_you_mean(name, self._inputs))
        for name in self._settings.dimensions:
            if name not in self._open:
                message = f'a size is given for "{name}", which no model of the group leaves open'
                yield (
                    "dimensions",
                    name,
                    _unknown("dimensions", message, did_you_mean(name, self._open)),
                )

    def note(self, inputs: Sequence[InputSpec]) -> None:
        """Note a model's inputs, whose names in `verify.inputs` are then known to be right."""
        self._inputs.update(spec.name for spec in inputs)
        self._open.update(sizes.open_names(inputs))

    def _fit(self, values: InputSet, inputs: Sequence[InputSpec]) -> Feeds | None:
        try:
            fitted = feeds.fit(values, inputs)
        except ManifestError as error:
            self._misfits.setdefault(values.label, error)
            return None
        self._used.add(values.label)
        return fitted


def _unknown(key: str, what: str, remedy: str) -> ManifestError:
    where = f"verify.inputs.{key}"
    return ManifestError(what, where=where, remedy=remedy, code=Code.VERIFY_INPUTS)
