"""An Optimize carried out, whatever onnx's inference makes of the model.

A model may be sound to ONNX Runtime, and onnx's inference crash on it or never end. Then less is
inferred: what is not known of shapes is left to ONNX Runtime, which is the judge.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable

from msgspec.structs import replace

from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.errors import CompileError, ModelError
from epctx.graph.native import REACHES


def optimize(job: Optimize, run: Callable[[Optimize], OptimizeResult]) -> OptimizeResult:
    """Carry out the job by `run`, again with less inference where that ended the process.

    Raises:
        ModelError: ONNX Runtime, or onnx's checker, ended it.
        EpctxError: as `run` raises it.
    """
    for reach in REACHES:
        try:
            return run(replace(job, reach=reach))
        except CompileError as error:
            if error.native is None:
                raise
            if error.native != "onnx's shape inference":
                raise _blamed(error, job) from error
            shutil.rmtree(job.folder, ignore_errors=True)
            failed = error
    raise failed


def _blamed(error: CompileError, job: Optimize) -> ModelError:
    return ModelError(
        f"{error.native} does not get through it: {error.what}",
        model=job.source.name,
        file=str(job.source.path),
        why=error.why,
        remedy=f"{error.remedy}; else make the model smaller, or report it to {_maker(error)}",
    )


def _maker(error: CompileError) -> str:
    return "ONNX Runtime" if error.native == "ONNX Runtime" else "onnx"
