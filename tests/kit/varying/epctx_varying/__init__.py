"""The reference EP, whose bytes depend on one of a process's circumstances.

A mock, because no real EP depends on each of them, and `epctx reproduce` is to catch one that does.
"""

from __future__ import annotations

import hashlib
import os
import platform
import time
import uuid
from collections.abc import Mapping
from pathlib import Path

from epctx.manifest import OptionValue
from epctx.providers.base import SessionGroupSpec, Workspace
from epctx.providers.reference import ReferenceExecutionProvider

made = 0


class VaryingExecutionProvider(ReferenceExecutionProvider):
    """Writes what it depends on, as a number, into binaries and nodes: their SDK version."""

    name = "VaryingExecutionProvider"

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        options = dict(options)
        self.depends = options.pop("depends", "nothing")
        self.folder = Path(str(options.pop("folder", ".")))
        super().__init__({**options, "sdk_version": "1.999999999"})  # a runtime for all of them

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
