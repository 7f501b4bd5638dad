"""Base of passes: an `onnx_ir.passes.InPlacePass` that counts its changes.

A third party adds a pass by an entry point of the group `epctx.passes`. The entry point's name is
the name in `optimize: [...]`. It loads a `PassFactory`: a class, or any callable without arguments,
that makes an `onnx_ir.passes.InPlacePass`. A pass that derives from `CountingPass` reports its
changes by kind; for any other pass the record only says whether it changed anything.

A pass must keep the graph's meaning: the names and order of inputs and outputs, and every output's
value. It must be a function of the graph alone, in any process: no time, no random numbers, no
iteration over sets. A third party's pass cannot have the name of a built-in pass.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import onnx_ir as ir


@dataclass
class Counted(ir.passes.PassResult):
    """A pass's result with counts by kind of change; empty if nothing changed."""

    changed: Mapping[str, int] = field(default_factory=dict)


class CountingPass(ir.passes.InPlacePass):
    """A pass that implements `apply` and gets a record of its changes."""

    @abc.abstractmethod
    def apply(self, model: ir.Model) -> Mapping[str, int]:
        """Change `model` in place; return counts by kind of change (zeros are dropped)."""

    def call(self, model: ir.Model) -> Counted:
        """Run `apply`."""
        changed = {kind: count for kind, count in self.apply(model).items() if count}
        return Counted(model, modified=bool(changed), changed=changed)


PassFactory = Callable[[], ir.passes.InPlacePass]
"""Type of the object that an entry point of `epctx.passes` loads."""
