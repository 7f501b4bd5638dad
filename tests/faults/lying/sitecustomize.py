"""In an `epctx worker`: answers that are wrong, as `EPCTX_TEST_LIES` says. For `PYTHONPATH`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any
from unittest import mock

if "worker" in sys.orig_argv:
    from msgspec.structs import replace

    from epctx.files.digest import of_bytes
    from epctx.machines import portable, serving
    from epctx.machines.portable import Blob, Blobs

    kind = os.environ["EPCTX_TEST_LIES"]
    collect, answered = portable.Placed.collect, serving.WorkerService._worked
    earlier: list[Any] = []

    def collected(self: portable.Placed, blobs: Blobs, *, failed: bool) -> dict[str, Blob]:
        """Other files than were made."""
        writes = [Path(text) for text, only in self._files.writes.items() if only is None]
        if kind == "flipped":
            for path in (path for each in writes for path in self.real(each).glob("*.bin")):
                content = bytearray(path.read_bytes())
                content[-1] ^= 1
                path.chmod(0o644)
                path.write_bytes(content)
        made = collect(self, blobs, failed=failed)
        compiled = any(name.endswith(".bin") for name in made)
        if kind == "elsewhere" and compiled:
            made[(writes[0].parent.parent / "evil").as_posix()] = next(iter(made.values()))
        if kind == "another digest" and compiled:
            made = {n: replace(b, digest=of_bytes(n.encode())) for n, b in made.items()}
        if kind == "nothing made" and compiled:
            made = {}
        return made

    def worked(self: serving.WorkerService, *arguments: Any) -> Any:
        """Results of another job."""
        answer = answered(self, *arguments)
        earlier.append(answer.results)
        return replace(answer, results=earlier[0]) if kind == "results of another" else answer

    mock.patch.object(portable.Placed, "collect", collected).start()
    mock.patch.object(serving.WorkerService, "_worked", worked).start()
    if kind == "no answer":
        mock.patch.object(Blobs, "put_answer", lambda *arguments: None).start()
