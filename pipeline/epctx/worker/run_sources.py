"""Running the sources of a session group, while others compile it."""

from __future__ import annotations

from collections.abc import Callable

from epctx.verification.numbers import expected
from epctx.worker.jobs import SourceJob


def run_sources(job: SourceJob, started: Callable[[str], None]) -> dict[str, str]:
    """Run them on the inputs of the manifest, and keep what they give in the job's folder.

    Args:
        started: hears which model is run, before it is: native code may crash.

    Returns:
        The models that run, but not on the inputs that were generated, and why.

    Raises:
        ModelError: a model does not run, on none of the inputs that were tried.
        ManifestError: a range does not fit its input.
        StorageError: the disk refuses.
    """
    unfed: dict[str, str] = {}
    for model, reason in expected.keep(job.sources, job.settings, job.folder):
        if reason is None:
            started(model)
        else:
            unfed[model] = reason
    return unfed
