"""EPs that need a fresh process for each session group: a build of all its sessions at once."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from epctx.commands import build
from epctx.commands.compile_model import described, outputs
from epctx.commands.compile_model.request import Request
from epctx.engine.options import BuildOptions
from epctx.errors import UsageError
from epctx.files.outputs import SUMS, context_file


def compile_group(requests: Sequence[Request]) -> None:
    """Compile the sessions of a group, in order, in a process of their own, and write all files.

    Raises:
        UsageError: two sessions have one name.
        EpctxError: it failed; nothing is written.
    """
    names = [request.name for request in requests]
    if len(set(names)) < len(names):
        raise UsageError(
            f"two sessions of a sharing group are called the same: {', '.join(names)}",
            remedy="give each an output of another name",
        )
    last = requests[-1]
    folder = last.output.parent
    with tempfile.TemporaryDirectory(prefix="epctx-") as scratch, outputs.staging(folder) as out:
        manifest = described.write(requests, Path(scratch))
        described.parsed(manifest)
        done = build.run(
            manifest,
            BuildOptions(out=out, jobs=1, numbers=False),
            listener=lambda event: None,
            allow_outside=True,
        )
        if done.failure is not None:
            raise done.failure
        built = out / described.NAME / "default" / described.GROUP
        models = {built / context_file(r.name): r.output for r in requests}
        others = [path for path in sorted(built.iterdir()) if path not in models]
        moves = {path: folder / path.name for path in others if path.name != SUMS}
        outputs.move({**moves, **models})
