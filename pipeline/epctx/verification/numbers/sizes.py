"""Sizes for the dimensions that a model leaves open, so that it can be run and compared.

They come from `verify.inputs.dimensions`. A dimension without sizes there is 1, and 2 in a second
set. `epctx init` searches for sizes at which a model runs (`actions.find_sizes`); a build
does not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from epctx.graph.inputs import InputSpec

Sizes = Mapping[str, int]
"""Sizes of open dimensions, by their names (`InputSpec.open`)."""
Runs = Callable[[Sizes], str | None]
"""Run a model at these sizes: None if it runs, else what ONNX Runtime says."""


class NotFound(Exception):
    """The model does not run at `sizes`, for the reason `why`."""

    def __init__(self, sizes: Sizes, why: str) -> None:
        super().__init__(why)
        self.sizes, self.why = sizes, why


def open_names(inputs: Sequence[InputSpec]) -> tuple[str, ...]:
    """Return the open dimensions of a model's inputs, each once, in order."""
    return tuple(dict.fromkeys(name for spec in inputs for name in spec.open.values()))


def fixed(inputs: Sequence[InputSpec], sizes: Sizes) -> tuple[InputSpec, ...]:
    """Return the inputs with sizes in place of their open dimensions."""
    return tuple(spec.fixed(sizes) for spec in inputs)


def words(sizes: Sizes) -> str:
    """Return sizes as text: `batch=2, sequence=5`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def choose(
    inputs: Sequence[InputSpec], asked: Mapping[str, Sequence[int]], runs: Runs
) -> tuple[Sizes, ...]:
    """Return the sets of sizes at which a model runs.

    Args:
        inputs: inputs with open dimensions.
        asked: sizes by dimension: for the first set, the second, …; the last size holds for all
            further sets. Names of other dimensions are ignored.
        runs: runs the model.

    Raises:
        NotFound: the model does not run at a requested size, or at none of the default sizes.
    """
    names = open_names(inputs)
    requested = {name: asked[name] for name in names if name in asked}
    count, free = max(map(len, requested.values()), default=1), len(requested) < len(names)
    runnable: list[Sizes] = []
    refused: list[NotFound] = []
    for number in range(max(count, 2) if free else count):
        sizes = {
            name: requested[name][min(number, len(requested[name]) - 1)]
            if name in requested
            else min(number + 1, 2)
            for name in names
        }
        why = runs(sizes)
        if why is None:
            runnable.append(sizes)
        else:
            refused.append(NotFound(sizes, why))
    if refused and not (free and runnable):
        raise refused[0]
    return tuple(runnable)
