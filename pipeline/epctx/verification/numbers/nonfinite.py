"""Sources that compute NaN or infinities: refused on a user's own inputs, unless that is meant."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn

import numpy as np

from epctx.errors import ModelError
from epctx.graph.inputs import Array
from epctx.manifest import ModelSource, VerifySettings


def refuse(
    source: ModelSource, settings: VerifySettings, label: str, outputs: Mapping[str, Array]
) -> None:
    """Check what a source model gives on an input set.

    On generated inputs it is no fault: nobody says that the model is made for them.

    Raises:
        ModelError: an output has NaN or infinities on inputs that were read from a file.
    """
    if not settings.inputs.files or settings.allow_nonfinite:
        return
    for name, output in outputs.items():
        if output.dtype.kind in "OUSbiu":
            continue
        nan = int(np.count_nonzero(np.isnan(output)))
        infinite = int(np.count_nonzero(np.isinf(output)))
        if nan or infinite:
            _refuse(source, label, f"{nan} NaN and {infinite} infinite of {output.size}", name)


def _refuse(source: ModelSource, label: str, found: str, output: str) -> NoReturn:
    raise ModelError(
        f"computes {found} elements in its output '{output}'",
        file=str(source.path),
        why=f"on the inputs of {label}, on ONNX Runtime's CPU EP",
        remedy="give inputs that the model is made for; docs/numbers.md says how values are "
        "declared that are meant, as in masks",
    )
