"""The reference EP, which computes rightly and then lies: its option names the fault.

A mock, because no real EP can be asked for a certain fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import onnxruntime as ort
from msgspec.structs import replace

from epctx.graph.epcontext import EPContextNode
from epctx.inference import values
from epctx.manifest import OptionValue, ProviderSpec, Tolerance
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider, Kernel, Precision, SharedContexts
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.verification.numbers import tolerances

from .faults import NAMES, OF_LATER_RUNS, Liar, Place


@dataclass
class LyingKernel:
    """Runs the right kernel, and changes what it gives; keeps a state on purpose."""

    kernel: Kernel
    liar: Liar

    def compute(self, inputs: Sequence[ort.OrtValue]) -> Sequence[ort.OrtValue]:
        right = list(self.kernel.compute(inputs))
        outputs = [values.to_python(value) for value in right]
        told = self.liar.lie(outputs)
        if told is None:
            raise ValueError(f"the fault {self.liar.fault!r} does not apply to this output")
        return [values.to_value(value) for value in told]


class LiarExecutionProvider(ReferenceExecutionProvider):
    """Options: `fault`, `output`, `axis`, `start`, `stop` (as in `Liar`, `Place`), `tolerance`."""

    name = "LiarExecutionProvider"

    def __init__(self, options: Mapping[str, OptionValue]) -> None:
        options = dict(options)
        self.fault = str(options.pop("fault", "none"))
        if self.fault not in ("none", *NAMES, *OF_LATER_RUNS):
            raise ValueError(f"there is no fault {self.fault!r}")
        self.output = int(str(options.pop("output", 0)))
        numbers = (int(str(options.pop(name, default))) for name, default in _PLACE.items())
        self.place = Place(*numbers)
        self.npu = options.pop("tolerance", "exact") == "npu"
        super().__init__({**options, "source": "liar"})

    def load(
        self, nodes: Sequence[EPContextNode], folder: Path | None, shared: SharedContexts | None
    ) -> Sequence[Kernel]:
        kernels = super().load(nodes, folder, shared)
        return [LyingKernel(each, Liar(self.fault, self.place, self.output)) for each in kernels]

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        """Limits of QNN, but for its range, or of the reference EP."""
        if not self.npu:
            return super().tolerance(precision, dtype)
        allowed = tolerances.limits([_qnn()], precision, dtype, Tolerance())
        return replace(allowed, saturates_at=None)


_PLACE = {"axis": -1, "start": 0, "stop": 0}


@cache
def _qnn() -> ExecutionProvider:
    spec = ProviderSpec(alias="qnn", provider="QNNExecutionProvider", options={"soc_model": "60"})
    return registry.create(spec)
