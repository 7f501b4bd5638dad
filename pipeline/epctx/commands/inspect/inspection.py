"""Types of `epctx inspect`: an EPContext model or a context binary of any origin."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct, field

from epctx.providers.base import BinaryInfo
from epctx.text import Brief


class Edge(Struct, frozen=True, kw_only=True):
    """Name and type of an input or output; the type is like `float32[1, 64]`, or "?" if unknown."""

    name: str
    type: str


class ContextNode(Struct, frozen=True, kw_only=True):
    """An EPContext node.

    Attributes:
        context: path of its context binary; None if it is embedded or main_context is 0.
        embedded: size of its payload in bytes; None if it is not embedded.
        attributes: its other attributes that the op defines, by name.
        unknown: names of its attributes that the op does not define.
        problem: reason why its attributes cannot be read; None if they can.
    """

    name: str
    source: str
    main_context: int
    embed_mode: int
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    context: str | None = None
    embedded: int | None = None
    attributes: Mapping[str, str] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    problem: str | None = None


class ShippedFile(Struct, frozen=True, kw_only=True):
    """File that a model needs beside it. `problem` is the reason why it cannot be shipped."""

    name: str
    kind: Literal["model", "context binary", "external data"]
    size: int | None = None
    problem: str | None = None


class Weights(Struct, frozen=True, kw_only=True):
    """Initializers left in a model: count, bytes inside the model, bytes by external data file."""

    tensors: int
    inside: int
    external: Mapping[str, int]


class BinaryFile(Struct, frozen=True, kw_only=True):
    """A context binary, or an embedded one.

    Attributes:
        info: content of the binary; None if this host cannot read it (`problem` has the reason).
        damaged: True if the EP that the binary belongs to cannot read it.
    """

    name: str
    size: int
    info: BinaryInfo | None = None
    problem: str | None = None
    damaged: bool = False


class ModelFile(Brief, frozen=True, kw_only=True):
    """An ONNX model.

    Attributes:
        operators: number of nodes left to the default EP, by op type, the most frequent first.
        compatibility: compatibility string of the model, by EP.
    """

    name: str
    size: int
    producer: str
    ir_version: int
    opsets: Mapping[str, int]
    inputs: tuple[Edge, ...]
    outputs: tuple[Edge, ...]
    nodes: tuple[ContextNode, ...]
    operators: Mapping[str, int]
    weights: Weights
    compatibility: Mapping[str, str]
    metadata: Mapping[str, str]
    files: tuple[ShippedFile, ...]
    binaries: tuple[BinaryFile, ...]


class Inspection(Brief, frozen=True, kw_only=True):
    """Result for one file: a model or a context binary."""

    model: ModelFile | None = None
    binary: BinaryFile | None = None

    @property
    def damage(self) -> tuple[str, str] | None:
        """Damaged part and reason; None if no part that this host can read is damaged."""
        binaries = self.model.binaries if self.model is not None else ()
        for binary in (self.binary, *binaries):
            if binary is not None and binary.damaged:
                return binary.name, binary.problem or ""
        for node in self.model.nodes if self.model is not None else ():
            if node.problem is not None:
                return f"node {node.name!r}", node.problem
        return None

    @property
    def files(self) -> tuple[ShippedFile, ...]:
        """Every file to ship, the inspected file first."""
        if self.model is not None:
            return self.model.files
        assert self.binary is not None
        return (ShippedFile(name=self.binary.name, kind="context binary", size=self.binary.size),)
