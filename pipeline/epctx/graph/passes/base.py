"""What a pass is: an `onnx_ir.passes.InPlacePass` that counts what it changed.

A third party adds a pass by an entry point of the group `epctx.passes`; the entry point's name is
the name in `optimize: [...]`, what it loads is a `PassFactory`: a class, or any callable without
arguments, that makes an `onnx_ir.passes.InPlacePass`. A pass that derives from `CountingPass` says
what it changed; from any other, the record can only tell whether it changed anything.

A pass must keep the graph's meaning: the names and order of inputs and outputs, and every output's
value. It must be a function of the graph alone, in any process: no time, no random numbers, no
iteration over sets. A built-in's name cannot be taken.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass
class Counted(ir.passes.PassResult):
    """A pass's result with counts by kind of change; empty where nothing changed."""

    changed: Mapping[str, int] = field(default_factory=dict)


class CountingPass(ir.passes.InPlacePass):
    """A pass that implements `apply` and gets its record for it."""

    @abc.abstractmethod
    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Change `model` in place; return counts by kind of change (zeros are dropped)."""

    def call(self, model: ir.Model) -> Counted:
        """Run `apply`."""
        changed = {kind: count for kind, count in self.apply(model).items() if count}
        return Counted(model, modified=bool(changed), changed=changed)


PassFactory = Callable[[], ir.passes.InPlacePass]
"""What an entry point of `epctx.passes` loads."""
