"""`epctx build --profile FILE`: where the time of a build went."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from epctx.cli.render import UI
from epctx.commands import profile
from epctx.worker import sampling


@contextmanager
def written(ui: UI, path: Path | None) -> Iterator[None]:
    """Write what is sampled while the context is open, and tell it; None: nothing is."""
    if path is None:
        yield
        return
    if sampling.folder() is None:  # not by the entry point, which sees the imports, too
        sampling.start()
    try:
        yield
    finally:
        samples = sampling.end()
        _tell(ui, samples, path)
        shutil.rmtree(samples, ignore_errors=True)


def _tell(ui: UI, samples: Path, path: Path) -> None:
    for process in profile.write(samples, path):
        listed = ", ".join(f"{kind} {seconds:.2f}" for kind, seconds in process.on.items())
        ui.note(f"{process.process}: {process.seconds:.2f} s: {listed}")
    ui.note(f"profile: {path}; open it in https://ui.perfetto.dev")
