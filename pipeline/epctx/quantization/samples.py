"""Samples of a calibration, one in memory at a time."""

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
from epctx.graph.serde import reader
from epctx.inference import feeds
from epctx.inference.feeds import Feeds
from epctx.manifest import Calibration, ModelSource, VerifyInputs
from epctx.verification.numbers import source_model
from epctx.verification.numbers.input_sets import InputSets

_KEY: Final = "quantize.calibration.files"
RANDOM: Final = 8
"""Number of generated samples if the manifest has none."""


class Samples:
    """Samples of one model, read as onnxruntime's `CalibrationDataReader`, a range at a time.

    Args:
        makers: functions that make a sample each.
    """

    def __init__(self, makers: Sequence[Callable[[], Feeds]]) -> None:
        self._makers = makers
        self._next = self._end = 0

    def __len__(self) -> int:
        return len(self._makers)

    def set_range(self, start_index: int, end_index: int) -> None:
        """Choose the samples that `get_next` returns from now on."""
        self._next, self._end = start_index, min(end_index, len(self))

    def get_next(self) -> Feeds | None:
        """Return the next sample; None after the last."""
        if self._next >= self._end:
            return None
        self._next += 1
        return self.feeds(self._next - 1)

    def feeds(self, number: int) -> Feeds:
        """Return a sample by its number, from 0 on."""
        return self._makers[number]()


def of(
    model: Path, name: str, settings: Calibration, others: Sequence[ModelSource] = ()
) -> Samples:
    """Return the samples of a model.

    Args:
        model: the float model with fixed dimensions.
        name: name of the model in the manifest.
        others: other models of its group: files that fit only them are skipped.

    Raises:
        ManifestError: a file fits no model of the group, none fits this one, or a value is not
            finite.
        ModelError: a file cannot be read; no values can be generated for an input.
    """
    inputs = graph_inputs.specs(reader.read(model))
    if settings.random:
        return _generated(name, inputs, settings.count or RANDOM)
    other_inputs = [source_model.inputs(source) for source in others]
    fitting: list[Callable[[], Feeds]] = []
    misfit: ManifestError | None = None
    for files in _sets(settings.files):
        try:
            _read(files, name, inputs)
        except _Misfit as error:
            if not any(_fits(files, each) for each in other_inputs):
                raise error.reason from error
            misfit = misfit or error.reason
            continue
        fitting.append(partial(_read, files, name, inputs))
        if len(fitting) == settings.count:
            break
    if not fitting:
        assert misfit is not None
        raise misfit
    return Samples(fitting)


class _Misfit(Exception):
    """Raised for a sample with other inputs, perhaps of another model."""

    def __init__(self, reason: ManifestError) -> None:
        super().__init__(reason)
        self.reason = reason


def _fits(files: Sequence[Path], inputs: Sequence[InputSpec]) -> bool:
    try:
        feeds.fit(feeds.read(files, key=_KEY)[0], inputs)
    except ManifestError:
        return False
    return True


def _no_sample(files: Sequence[Path], model: str, why: str, remedy: str) -> ManifestError:
    first = files[0]
    return ManifestError(
        f"is not a sample for model {model}",
        file=str(first.parent if first.suffix == ".pb" else first),
        why=why,
        remedy=remedy,
        code=Code.CALIBRATION,
    )


def _sets(files: Sequence[Path]) -> list[tuple[Path, ...]]:
    """Return the files of each sample: for ONNX's test data all files of a folder."""
    groups: dict[Path, list[Path]] = {}
    for path in files:
        groups.setdefault(path.parent if path.suffix == ".pb" else path, []).append(path)
    return [tuple(group) for group in groups.values()]


def _read(files: Sequence[Path], model: str, inputs: Sequence[InputSpec]) -> Feeds:
    """Return the sample in some files.

    Raises:
        _Misfit: the sample does not fit the inputs.
        ManifestError: a value is not finite.
    """
    values = feeds.read(files, key=_KEY)[0]
    try:
        sample = feeds.fit(values, inputs)
    except ManifestError as error:
        raise _Misfit(_no_sample(files, model, f"it {error.what}", error.remedy)) from error
    for name, value in sample.items():
        if value.dtype.kind == "f" and not np.isfinite(value).all():
            first = np.argwhere(~np.isfinite(value))[0]
            why = f"its input {name!r} is {value[tuple(first)]} at {first.tolist()}, "
            why += "which is not finite"
            remedy = "remove the file, or correct what writes it"
            raise _no_sample(files, model, why, remedy)
    return sample


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
