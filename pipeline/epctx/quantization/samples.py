"""The samples that a model is calibrated with, one in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import numpy as np

from epctx.error_codes import Code
from epctx.errors import ManifestError, ModelError
from epctx.graph import inputs as graph_inputs
from epctx.graph.inputs import InputSpec
from epctx.graph.serde import skeleton
from epctx.manifest import Calibration, VerifyInputs
from epctx.runtime import feed_files
from epctx.runtime.feeds import Feeds
from epctx.verification.numbers.input_sets import InputSets

RANDOM: Final = 8
"""Samples that are generated where the manifest does not say how many."""


class Samples:
    """Samples of one model, as onnxruntime's `CalibrationDataReader` gives them, in stretches.

    Args:
        makers: each makes a sample.
    """

    def __init__(self, makers: Sequence[Callable[[], Feeds]]) -> None:
        self._makers = makers
        self._next = self._end = 0

    def __len__(self) -> int:
        return len(self._makers)

    def set_range(self, start_index: int, end_index: int) -> None:
        """The samples that `get_next` gives from now on."""
        self._next, self._end = start_index, min(end_index, len(self))

    def get_next(self) -> Feeds | None:
        """The next sample; None: there is no other."""
        if self._next >= self._end:
            return None
        self._next += 1
        return self._makers[self._next - 1]()

    def first(self) -> Feeds:
        """The first one."""
        return self._makers[0]()


def of(model: Path, name: str, settings: Calibration, *, alone: bool) -> Samples:
    """The samples of a model.

    Args:
        model: the float model, its dimensions fixed.
        name: of the model in the manifest.
        alone: of its group; else files may be of other models of it.

    Raises:
        ManifestError: a file does not fit, none has the model's inputs, or a value is not finite.
        ModelError: a file cannot be read; no values can be generated for its inputs.
    """
    inputs = graph_inputs.specs(skeleton.read(model))
    if settings.random:
        return _generated(name, inputs, settings.count or RANDOM)
    fitting: list[Callable[[], Feeds]] = []
    misfit: ManifestError | None = None
    for files in _sets(settings.files):
        try:
            _read(files, inputs, alone=alone)
        except _Others as error:
            misfit = misfit or error.misfit
            continue
        fitting.append(partial(_read, files, inputs, alone=alone))
        if len(fitting) == settings.count:
            break
    if not fitting:
        assert misfit is not None
        raise _told(misfit, name)
    return Samples(fitting)


class _Others(Exception):
    """A sample has other inputs: it is of another model of the group; has what is wrong with it."""

    def __init__(self, misfit: ManifestError) -> None:
        super().__init__(misfit)
        self.misfit = misfit


def _told(misfit: ManifestError, name: str) -> ManifestError:
    return ManifestError(
        f"a sample of quantize.calibration does not fit: {misfit.what}",
        model=name,
        why=misfit.why,
        remedy=misfit.remedy,
        code=Code.CALIBRATION,
    )


def _sets(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Files that are a sample together: of ONNX's test data all of a folder."""
    groups: dict[Path, list[Path]] = {}
    for path in files:
        groups.setdefault(path.parent if path.suffix == ".pb" else path, []).append(path)
    return [tuple(group) for group in groups.values()]


def _read(files: Sequence[Path], inputs: Sequence[InputSpec], *, alone: bool) -> Feeds:
    """The sample of some files.

    Raises:
        _Others: its inputs have other names, and there are other models.
        ManifestError: a value does not fit, or is not finite.
    """
    values = feed_files.read(files)[0]
    try:
        found = feed_files.fit(values, inputs)
    except ManifestError as error:
        names = {spec.name for spec in inputs}
        if not alone and values.named.keys() != names:
            raise _Others(error) from error
        raise _told(error, values.label) from error
    for name, value in found.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            raise ManifestError(
                f'{values.label} has values of the input "{name}" that are not finite',
                where="quantize.calibration.files",
                why="NaN or infinite: no range holds them",
                remedy="remove the file, or correct what writes it",
                code=Code.CALIBRATION,
            )
    return found


def _generated(name: str, inputs: Sequence[InputSpec], count: int) -> Samples:
    sets = InputSets(VerifyInputs(count=count))
    problems = sets.problems(inputs)
    if problems:
        raise ModelError(
            f"no samples can be generated: {'; '.join(problems)}",
            model=name,
            remedy="give some with `quantize.calibration.files`",
            code=Code.CALIBRATION,
        )
    return Samples([partial(_case, sets, inputs, number) for number in range(count)])


def _case(sets: InputSets, inputs: Sequence[InputSpec], number: int) -> Feeds:
    return sets.case(inputs, number).feeds
