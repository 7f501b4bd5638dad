"""Sizes for what a model leaves open, at which it runs: so a starter manifest builds as it stands.

They are those that its names suggest, if it runs at them on ONNX Runtime's CPU EP, else those that
a search finds. The model is run in a process of its own: native code may crash.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from epctx import limits
from epctx.actions.numbers import RunSources
from epctx.engine.executor import Cancelled, Executor, one
from epctx.engine.scheduler import Scheduler
from epctx.errors import EpctxError, Interrupted
from epctx.graph.inputs import InputSpec
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from epctx.verification.numbers import recordings
from epctx.verification.numbers.sizes import Sizes, open_names
from epctx.worker.pool import Pool

_NAMED: Final = (
    (re.compile(r"batch|^(n|b|bs)$|\[0\]$", re.IGNORECASE), 1),
    (re.compile(r"height|width|^(h|w)$", re.IGNORECASE), 224),
    (re.compile(r"past|total|cache", re.IGNORECASE), None),  # they depend on others
    (re.compile(r"seq|length|token|time|frame", re.IGNORECASE), 64),
)
"""What people call dimensions, and a size that such a model is often compiled for."""
_MODEL: Final = "model"


def find(model: Path, inputs: Sequence[InputSpec]) -> Sizes | None:
    """A size for each open dimension, by the names that `InputSpec.open` gives them.

    Args:
        model: the ONNX file.
        inputs: what it must be fed.

    Returns:
        None: it does not run here at any that was tried, in the time that a search may take, or its
        weights are missing.
    """
    with tempfile.TemporaryDirectory(prefix="epctx-init-") as scratch:
        folder = Path(scratch)
        with Scheduler(Pool(work=folder / "work", logs=folder / "logs")) as scheduler:
            for number, asked in enumerate(_proposals(open_names(inputs))):
                found = _run(scheduler.executor, model, asked, folder / str(number))
                if found is not None:
                    return {**asked, **found}
    return None


def _proposals(names: Sequence[str]) -> Iterator[Mapping[str, int]]:
    named = {name: size for name in names if (size := _size(name)) is not None}
    batch = {name: size for name, size in named.items() if size == 1}
    tried: list[Mapping[str, int]] = []
    for asked in (named, batch, {}):
        if asked not in tried:
            tried.append(asked)
            yield asked


def _size(name: str) -> int | None:
    return next((size for pattern, size in _NAMED if pattern.search(name)), None)


def _run(executor: Executor, model: Path, asked: Mapping[str, int], kept: Path) -> Sizes | None:
    """Sizes at which it runs, with those that are asked for; None: it does not."""
    dimensions = {name: (size,) for name, size in asked.items()}
    settings = VerifySettings(inputs=VerifyInputs(dimensions=dimensions))
    source = ModelSource(name=_MODEL, path=model.absolute())
    action = RunSources(sources=(source,), settings=settings, folder=kept)
    try:
        with executor.lane(None) as lane:
            result = one(
                lane,
                action,
                # The search ends by itself; a model that it runs may not.
                timeout=2 * limits.SIZE_SECONDS.value,
            )
        found = recordings.read_sizes(kept, _MODEL)
    except (Interrupted, Cancelled):
        raise
    except EpctxError:  # a build will say it better
        return None
    return None if result.unfed or not found else found[0]
