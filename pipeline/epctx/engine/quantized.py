"""A group's models quantized again, outside of a build: to verify and to preview what it makes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.actions.quantize import Quantize
from epctx.cache.digests import FileDigests
from epctx.engine.actions import loading
from epctx.engine.executor import one
from epctx.engine.lookup import quantized_source
from epctx.engine.ranges import Ranges
from epctx.error_codes import Code
from epctx.errors import ManifestError
from epctx.files.digest import Digest
from epctx.keys import key, records
from epctx.manifest import ModelGroup, ModelSource, QuantizeSettings
from epctx.worker.pool import WorkerLease


def again(
    group: ModelGroup,
    ranges: Ranges,
    digests: FileDigests,
    folder: Path,
    lease: WorkerLease,
    *,
    calibrate: bool = False,
) -> ModelGroup:
    """The group with the sources that it was built from; its own, if it is not quantized.

    Args:
        ranges: those of its manifest.
        digests: how samples are digested.
        folder: gets the quantized models; need not exist.
        lease: carries out the jobs.
        calibrate: find ranges that are not known, as those of a build that failed.

    Raises:
        ManifestError: the ranges of a model are not known.
        EpctxError: what a job raised.
    """
    settings = group.quantize
    if settings is None:
        return group
    samples = [records.sample(path, digests) for path in settings.calibration.files]
    models = tuple(
        _model(group, settings, source, samples, ranges, folder / f"m{number}", lease, calibrate)
        for number, source in enumerate(group.models)
    )
    return replace(group, models=models)


def _model(
    group: ModelGroup,
    settings: QuantizeSettings,
    source: ModelSource,
    samples: Sequence[Digest],
    ranges: Ranges,
    folder: Path,
    lease: WorkerLease,
    calibrate: bool,
) -> ModelSource:
    plain, made = folder / "o", folder / "q"
    job = Optimize.of(source, group.optimize, plain)
    digest = loading.optimize(job, lambda job: one(lease, job)).digest
    known = None
    if settings.calibrated:
        asked = records.calibration(digest, group, samples)
        known = ranges.find(key(asked))
        if known is None and not calibrate:
            raise ManifestError(
                "nothing tells the ranges that it is quantized with",
                model=source.name,
                file=str(ranges.path),
                remedy="run `epctx build`, which finds and writes them",
                code=Code.CALIBRATION,
            )
    one(
        lease,
        replace(
            Quantize.of(group, digest, samples, known),
            name=source.name,
            optimized=plain,
            others=tuple(each for each in group.models if each.name != source.name),
            folder=made,
        ),
    )
    return quantized_source(source, settings, made)
