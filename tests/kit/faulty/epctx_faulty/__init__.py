"""The reference EP with faults: what a vendor SDK does to a process, on demand.

A mock, because no real EP crashes, hangs or floods its log at a stage that a test can choose.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx_ir as ir

from epctx.errors import CompileError
from epctx.graph.model import Partition, Replacement
from epctx.graph.serde import wire
from epctx.manifest import OptionValue
from epctx.providers.base import PartitionedModel, SessionGroupSpec, Workspace
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.providers.reference.options import ReferenceOptions
from epctx.providers.reference.workspace import ReferenceWorkspace


class Damaging(ReferenceWorkspace):
    """Turns the sign of every number of one weight, and says nothing."""

    def __init__(self, weight: str, options: ReferenceOptions, spec: SessionGroupSpec) -> None:
        super().__init__(options, spec)
        self.weight = weight

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        for value in (value for part in partitions for value in part.initializers):
            if value.name == self.weight and value.const_value is not None:
                value.const_value = ir.tensor(-value.const_value.numpy(), name=value.name)
        return super().compile(model, partitions)


class FaultyExecutionProvider(ReferenceExecutionProvider):
    """Does what option `fault` says when the workspace is opened, or when it is finished.

    It notes the processes that it starts in the file that option `notes` names.
    """

    name = "FaultyExecutionProvider"
    isolated = True

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        options = dict(options)
        self.fault = options.pop("fault", "none")
        self.notes = Path(str(options.pop("notes", "")))
        self.weight = str(options.pop("weight", ""))
        super().__init__(options)

    def open_workspace(self, session_group: SessionGroupSpec) -> Workspace:
        print("SDK: native noise on stdout", flush=True)
        if self.fault == "abort":
            print("SDK: assertion failed in graph prepare", file=sys.stderr, flush=True)
            os.kill(os.getpid(), signal.SIGABRT)
        if self.fault == "hang":
            child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
            print(f"SDK: child {child.pid}", flush=True)
            time.sleep(600)
        if self.fault == "large":
            vars(wire)["LARGEST"] = 1000  # as if what it makes had 2 GB
        if self.fault == "exit":
            os._exit(3)
        if self.fault == "error":
            raise CompileError("the SDK refuses the graph", remedy="use another SDK")
        if self.fault == "bug":
            raise KeyError("surprise")
        if self.fault == "flood":
            for number in range(200_000):
                print(f"SDK: line {number} of a flood")
            print("SDK: end of the flood", flush=True)
            os._exit(4)
        if self.fault == "endless":
            # Beyond the limit of the log; what is kept says how it began and how it ended.
            print("SDK: begin of the endless log", flush=True)
            for _ in range(300):
                print("x" * 100_000, flush=True)
                time.sleep(0.005)
            raise CompileError("the SDK has said enough", remedy="none")
        if self.fault == "memory":
            eaten = []
            while True:
                eaten.append(bytearray(os.urandom(1 << 20)) * 20)
                time.sleep(0.02)
        if self.fault == "fork":
            code = "import subprocess, sys, time; time.sleep(600)"
            children = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(3)]
            self.notes.write_text(" ".join(str(c.pid) for c in children))
        if self.fault == "protocol":
            for descriptor in range(3, 20):
                try:
                    os.write(descriptor, b'{"result": "\xff\xfe\n')
                except OSError:
                    continue
        if self.fault == "quiet":
            os._exit(0)
        if self.fault == "after":
            # An "ok" first, then a crash on the way out (real-eps.md section 6).
            import atexit

            atexit.register(lambda: os._exit(134))
        if self.fault == "native":
            # Where the destructors of a library run, after Python: QNN 2.7.0 aborts there.
            library = ctypes.CDLL(None)
            library["__cxa_atexit"](library.abort, None, None)
        if self.fault == "weight":
            return Damaging(self.weight, self.options, session_group)
        return super().open_workspace(session_group)
