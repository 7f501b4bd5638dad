"""The reference EP, whose bytes depend on one of a process's circumstances.

A mock, because no real EP depends on each of them, and `epctx reproduce` is to catch one that does;
and because the one whose bytes depend on the CPU (OpenVINO) has devices on Intel's only, and a test
cannot change the CPU: a kind of host is a folder of `sys.path` with a file `isa`, which says what
this EP depends on with `depends: cpu`, and tells in its fingerprint.
"""

from __future__ import annotations

import hashlib
import os
import platform
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from epctx.manifest import OptionValue
from epctx.providers.base import Fingerprint, SessionGroupSpec, Workspace
from epctx.providers.reference import ReferenceExecutionProvider

made = 0


def isa() -> str:
    """The instruction set of this kind of host."""
    files = (Path(folder, "isa") for folder in sys.path)
    return next(file.read_text(encoding="utf-8") for file in files if file.is_file())


class VaryingExecutionProvider(ReferenceExecutionProvider):
    """Writes what it depends on, as a number, into binaries and nodes: their SDK version."""

    name = "VaryingExecutionProvider"

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        options = dict(options)
        self.depends = options.pop("depends", "nothing")
        self.folder = Path(str(options.pop("folder", ".")))
        super().__init__({**options, "sdk_version": "1.999999999"})  # a runtime for all of them

    def fingerprint(self) -> Fingerprint:
        own = super().fingerprint()
        return replace(own, host={"isa": isa()}) if self.depends == "cpu" else own

    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        global made
        made += 1
        seen = repr(self._seen()).encode()
        number = int.from_bytes(hashlib.sha256(seen).digest()[:3], "big")
        bound = ReferenceExecutionProvider({"sdk_version": f"1.{number}"})
        return bound.open_workspace(session_group)

    def _seen(self) -> object:
        match self.depends:
            case "nothing":
                return None
            case "cpu":
                return isa()
            case "chance":
                return uuid.uuid4()
            case "path":
                return Path.cwd()
            case "environment":
                return os.environ.get("CAPTURE_ENVIRONMENT")
            case "exec-path":
                return os.environ["PATH"]
            case "home":
                return Path.home()
            case "locale":
                return os.environ["LC_ALL"]
            case "time-zone":
                return time.tzname
            case "hash-seed":
                return hash("text")
            case "umask":
                mask = os.umask(0)
                os.umask(mask)
                return mask
            case "time":
                return time.strftime("%Y")
            case "file-order":
                return [path.name for path in self.folder.iterdir()]
            case "file-times":
                return sorted(p.stat().st_mtime < 1e9 for p in self.folder.iterdir())
            case "cores":
                return len(os.sched_getaffinity(0))
            case "jobs":
                return made
            case "user":
                return os.getuid()
            case "host-name":
                return platform.node()
        raise ValueError(self.depends)
