"""`epctx run`: run a model in a separate process, because an EP can crash on a damaged context.

QNN ends the process with SIGSEGV or SIGABRT on some contexts (real-eps.md section 5).
"""

from __future__ import annotations

import math
import os
import re
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, cast

from epctx.actions.trial import Trial
from epctx.arguments import checked
from epctx.commands.options import AnyPath, Existing, Option, Written
from epctx.engine.executor import Scheduler
from epctx.errors import CompileError, UsageError, VerificationError
from epctx.inference import selection
from epctx.inference.selection import ProviderArgument
from epctx.inference.trial import CaseReport, OutputReport, RunJob, RunReport
from epctx.text import visible
from epctx.worker.pool import Pool, own_logs

__all__ = ["CaseReport", "OutputReport", "RunReport", "run"]

_COLOUR: Final = re.compile(r"\x1b\[[\d;]*m")
"""Colours of ONNX Runtime's log."""


@checked
def run(
    model: Annotated[AnyPath, Option(metavar="MODEL"), Existing()],
    *,
    inputs: Annotated[
        Sequence[AnyPath], Option(name="input", short="i", metavar="FILE"), Existing()
    ] = (),
    providers: Sequence[ProviderArgument] | None = None,
    seed: Annotated[int, Option(metavar="N")] = 0,
    count: Annotated[int, Option(metavar="N", least=1)] = 1,
    ranges: Annotated[
        Mapping[str, tuple[float, float]] | None, Option(name="range", metavar="NAME=LOW,HIGH")
    ] = None,
    dimensions: Annotated[
        Mapping[str, int] | None, Option(name="dimension", metavar="NAME=SIZE")
    ] = None,
    repeat: Annotated[int, Option(metavar="N", least=1)] = 1,
    save: Annotated[AnyPath | None, Option(metavar="FILE"), Written()] = None,
    warnings: bool = False,
) -> RunReport:
    """Run a model on its execution providers, on inputs from files or on generated inputs.

    Args:
        model: an EPContext model, or any ONNX model.
        inputs: a .npz, .npy or .pb file of inputs; may be repeated. If omitted, inputs are
            generated.
        providers: EPs with their options, as in `runtime.InferenceSession`.
        seed: seed of generated inputs.
        count: number of input sets to generate.
        ranges: range of an input's generated values, both ends included; may be repeated.
        dimensions: size of an open dimension of generated inputs, by its name or INPUT[AXIS]; may
            be repeated.
        repeat: number of runs of each input set; the median time is reported.
        save: a .npz file for the outputs; several input sets get one file each,
            `<stem>-<number>.npz`.
        warnings: let onnxruntime and the EPs write their warnings to stderr, not only errors.

    Raises:
        UsageError: the inputs do not fit the model, or it fails on them; one of several named EPs
            takes no node; or a named EP only runs compiled models.
        ModelError: the model or a file of inputs is missing or broken.
        InvalidGraph: the contexts of the model cannot be loaded.
        ProviderUnavailable: a named EP is not installed, or has no device here.
        ManifestError: an EP does not have an option, or does not accept its value.
        CompileError: the named EPs take no node of the model, or fail on it.
        VerificationError: an EP crashed on the model.
        StorageError: the outputs cannot be saved.
    """
    if save is not None and Path(save).suffix != ".npz":
        raise UsageError(f"outputs cannot be saved as {save}", remedy="name a .npz file")
    for name, ends in (ranges or {}).items():
        if not all(map(math.isfinite, ends)):
            raise UsageError(f"the range of {name} is not finite", remedy="give two finite numbers")
    named = selection.pairs(providers, None)
    job = RunJob(
        folder=Path.cwd(),
        model=Path(model),
        inputs=tuple(map(Path, inputs)),
        providers=None
        if named is None
        else tuple((name, dict(options)) for name, options in named),
        seed=seed,
        count=count,
        ranges=dict(ranges or {}),
        dimensions=dict(dimensions or {}),
        repeat=repeat,
        save=None if save is None else Path(save),
        warnings=warnings,
    )
    with tempfile.TemporaryDirectory(prefix="epctx-run-") as scratch:
        return _in_a_process(job, Path(scratch))


def _in_a_process(job: RunJob, scratch: Path) -> RunReport:
    """Run the job in a worker with the caller's folder and environment.

    The libraries of a device may need both.
    """
    pool = Pool(work=scratch / "work", logs=own_logs(), variables=os.environ)
    told: CompileError | None = None
    try:
        with Scheduler(pool), pool.isolated("run") as worker:
            try:
                results = worker.run([Trial(job=job)], started=lambda stage: None)
            except CompileError as error:
                told = error if worker.alive else None
                raise
            if job.warnings:
                log = worker.log.read_text(encoding="utf-8", errors="replace")
                sys.stderr.write(visible(_COLOUR.sub("", log)))
            return cast(RunReport, results[0])
    except CompileError as error:
        if error is told:
            raise
        raise VerificationError(
            f"the process that ran it crashed: {error.what}",
            file=str(job.model),
            why=error.why,
            remedy="if it was compiled, its context may be damaged: run `epctx verify` on its "
            "folder; else report it to the maker of the EP",
        ) from error
