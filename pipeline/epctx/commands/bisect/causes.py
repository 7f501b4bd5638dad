"""Causes of a wrong node, as a closed set, and manifest changes that may repair the node."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import numpy as np
import onnx_ir as ir
from msgspec.structs import replace

from epctx.commands.bisect.result import Cause, Kind, Proposal
from epctx.manifest import ModelGroup, TensorOverride, Written
from epctx.parsing.precedence import DEFAULT_TARGET
from epctx.providers.base import FLOAT16_MAX, ExecutionProvider
from epctx.quantization.presets import choose
from epctx.quantization.ranges import Ranges

_FLOAT16_LEAST: Final = 2.0**-14
"""Smallest magnitude for which float16 has full precision."""
_FLOAT16: Final[Mapping[Kind, str]] = {
    "fp16 overflow": f"beyond {FLOAT16_MAX:g}, the largest number of the EP's float16",
    "fp16 underflow": f"below {_FLOAT16_LEAST:.3g}, where the EP's float16 has fewer digits",
}
_CLIPPED: Final = 1.05
_TOO_WIDE: Final = 4.0
"""Ratio of a range's width to its numbers at which the range loses two of eight bits."""
_NARROW: Final = ("uint8", "int8")
_WIDE: Final = "uint16"
Section = Literal["partition", "quantize"]
Change = tuple[Proposal, ModelGroup]


@dataclass(frozen=True, kw_only=True)
class Inquiry:
    """Facts about the first wrong node.

    Attributes:
        ranges: lowest and highest number of each value of the source model.
        quantized: the range that each value is quantized with.
        quantizing: True if the quantized model itself is wrong, before a compile.
    """

    node: ir.Node
    target: str
    group: ModelGroup
    providers: Sequence[ExecutionProvider]
    ranges: Ranges = field(default_factory=dict)
    quantized: Ranges = field(default_factory=dict)
    quantizing: bool = False

    def cause(self) -> Cause:
        """Determine the cause."""
        ranges = {str(v.name): r for v in _values(self.node) if (r := self._range(v)) is not None}
        if self.quantizing:
            misfits = [words for name in ranges if (words := self._misfit(name)) is not None]
            if misfits:
                return Cause(kind="quantization range", why="; ".join(misfits), ranges=ranges)
            why = "the quantization ranges at the node fit its numbers on these inputs"
            return Cause(kind="unknown", why=why, ranges=ranges)
        for kind, words in _FLOAT16.items() if any(map(_uses_float16, self.providers)) else ():
            beyond = [name for name, range_ in ranges.items() if _beyond(range_, kind)]
            if beyond:
                return Cause(kind=kind, why=f"{words}: {_listed(beyond)}", ranges=ranges)
        why = (
            "no number at the node is too large or too small, and the EP has no known fault for it"
        )
        unknown = Cause(kind="unknown", why=why)
        return replace(known_fault(self.node, self.providers) or unknown, ranges=ranges)

    def changes(self, cause: Cause) -> Iterator[Change]:
        """List changes that may repair the node, the smallest first."""
        if self.quantizing:
            for ranges in (cause.ranges, self.ranges):
                misfits = [name for name in ranges if self._misfit(name) is not None]
                if misfits:
                    measured = {
                        n: tuple(float(f"{e:.6g}") for e in self.ranges[n]) for n in misfits
                    }
                    yield self._override(
                        {name: {"range": range_} for name, range_ in measured.items()}
                    )
            yield from self._quantized_otherwise()
            return
        nodes = [self.node]
        if cause.kind in _FLOAT16:
            nodes = self._region(cause.kind)
        elif cause.kind == "known EP fault":
            nodes = [n for n in self.node.graph or () if known_fault(n, self.providers)]
        yield self.without(nodes)
        yield self.exclude([], [operator(self.node)])
        yield from self._quantized_otherwise()

    def without(self, nodes: Sequence[ir.Node], key: Section = "partition") -> Change:
        """Exclude nodes by name, and nodes without a name by operator."""
        names = sorted({glob.escape(node.name) for node in nodes if node.name})
        return self.exclude(names, sorted({operator(node) for node in nodes if not node.name}), key)

    def exclude(
        self, names: Sequence[str], op_types: Sequence[str], key: Section = "partition"
    ) -> Change:
        """Keep nodes of these names and operators off the EPs, or in float if `key` is quantize."""
        settings = getattr(self.group, key)
        nodes = tuple(dict.fromkeys((*settings.exclude_nodes, *names)))
        ops = tuple(dict.fromkeys((*settings.exclude_op_types, *op_types)))
        patterns = {
            kind: list(names_) for kind, names_ in (("nodes", nodes), ("op_types", ops)) if names_
        }
        what = f"exclude of {_listed((*names, *op_types))}"
        fields = {"exclude_nodes": nodes, "exclude_op_types": ops}
        return self._change(key, what, {"exclude": patterns}, **fields)

    def _quantized_otherwise(self) -> Iterator[Change]:
        """Propose more bits for the node, float for it, more bits for all, float for its type."""
        settings = self.group.quantize
        if settings is None:
            return
        names = [str(value.name) for value in _values(self.node) if value.name in self.quantized]
        narrow = choose(settings, self.group.preset).activations in _NARROW and settings.calibrated
        if narrow and names:
            yield self._override({name: {"type": _WIDE} for name in names})
        yield self.without([self.node], "quantize")
        if narrow:
            wide = {"activations": _WIDE}
            yield self._change("quantize", f"activations {_WIDE}", wide, **wide)
        yield self.exclude([], [operator(self.node)], "quantize")

    def _override(self, changes: Mapping[str, Mapping[str, Any]]) -> Change:
        assert self.group.quantize is not None
        overrides = dict(self.group.quantize.overrides)
        for name, keys in changes.items():
            overrides[name] = replace(overrides.get(name, TensorOverride()), **keys)
        manifest = {name: _plain(keys) for name, keys in changes.items()}
        what = f"overrides of {_listed(changes)}"
        return self._change("quantize", what, {"overrides": manifest}, overrides=overrides)

    def _change(self, key: Section, what: str, settings: Written, **fields: Any) -> Change:
        group = replace(self.group, **{key: replace(getattr(self.group, key), **fields)})
        manifest = self._in_manifest({key: settings})
        return Proposal(what=f"{key}.{what}", manifest=manifest), group

    def _in_manifest(self, settings: Mapping[str, Written]) -> Written:
        """Place the group's settings in the manifest, under the target unless it is the default."""
        group = {"model_groups": {self.group.name: settings}}
        return group if self.target == DEFAULT_TARGET else {"targets": {self.target: group}}

    def _region(self, kind: Kind) -> list[ir.Node]:
        """Return the node and all nodes connected to it by values beyond float16's range."""
        region: dict[ir.Node, None] = {}
        pending = [self.node]
        while pending:
            node = pending.pop()
            if node in region:
                continue
            region[node] = None
            for value in _values(node):
                if not value.is_initializer() and _beyond(self._range(value), kind):
                    pending += [*filter(None, [value.producer()]), *value.consumers()]
        return list(region)

    def _range(self, value: ir.Value) -> tuple[float, float] | None:
        if value.const_value is None or not value.const_value.size:
            return self.ranges.get(str(value.name))
        array = value.const_value.numpy().astype(np.float64)
        return float(array.min()), float(array.max())

    def _misfit(self, name: str) -> str | None:
        """Describe how a value's quantization range misfits its numbers; None if it fits."""
        if name not in self.quantized or name not in self.ranges:
            return None
        (low, high), (least, greatest) = self.quantized[name], self.ranges[name]
        words = f"{name!r} is {least:.4g} to {greatest:.4g}, quantized from {low:.4g} to {high:.4g}"
        least, greatest = min(least, 0.0), max(greatest, 0.0)
        if least < low * _CLIPPED or greatest > high * _CLIPPED:
            return f"{words}: numbers beyond the range are clipped"
        too_wide = high - low > _TOO_WIDE * (greatest - least)
        return f"{words}: the range leaves few steps for these numbers" if too_wide else None


def known_fault(node: ir.Node, providers: Iterable[ExecutionProvider]) -> Cause | None:
    """Return a known fault of an EP that concerns the node."""
    for provider in providers:
        for fault in provider.faults:
            if (node.domain, node.op_type) == ("", fault.op_type) and fault.concerns(node):
                return Cause(kind="known EP fault", why=fault.what, remedy=fault.remedy)
    return None


def _plain(keys: Mapping[str, Any]) -> Written:
    return {key: list(v) if isinstance(v, tuple) else v for key, v in keys.items()}


def _beyond(range_: tuple[float, float] | None, kind: Kind) -> bool:
    largest = max(map(abs, range_ or (0.0,)))
    return largest > FLOAT16_MAX if kind == "fp16 overflow" else 0 < largest < _FLOAT16_LEAST


def _uses_float16(provider: ExecutionProvider) -> bool:
    """Tell whether the EP computes float32 in float16."""
    tolerance = provider.tolerance("float32", "float32")
    return tolerance is not None and tolerance.saturates_at == FLOAT16_MAX


def _values(node: ir.Node) -> Iterator[ir.Value]:
    """Floating-point inputs and outputs of a node."""
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.dtype is not None and value.dtype.is_floating_point():
            yield value


def operator(node: ir.Node) -> str:
    """Return the op type of a node as `exclude.op_types` has it."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))
