"""The `com.microsoft::EPContext` operator: its attributes as a type, written and read.

Source: spec/ep-context-design.md, "EPContext Op Schema". The op's default of `embed_mode` is 1 and
the session option's is 0, so `embed_mode` and `main_context` are always written.

ONNX strings are UTF-8, but an embedded payload is not. onnx_ir keeps such an attribute as `bytes`
and warns. This module puts a `Payload` into the graph, and silences the warning about it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct, field

from epctx.errors import InvalidGraph
from epctx.text import node_words

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

DOMAIN: Final = "com.microsoft"
OP_TYPE: Final = "EPContext"
COMPATIBILITY: Final = "ep_compatibility_info."
"""Prefix of metadata keys, one for each EP, whose values say which devices a model fits."""

OVERRIDES: Final = "io_name_overrides"
"""QNN's attribute that maps names of a node's values to those in the compiled graph: `x_q=x;`."""
ENDS: Final = "epctx.ends"
"""Key in a node's `meta`, for the `ends` that its EP wrote, if names may be overridden."""

OURS: Final = "epctx_"
"""Prefix of metadata keys that only epctx writes; a source's are left out when it is loaded."""
PIECES: Final = f"{OURS}pieces"
"""Metadata key of the cuts of a model that was compiled in pieces: a JSON list that has, for each
piece but the last, the names of the values that cross to later pieces."""
Cuts = tuple[tuple[str, ...], ...]
"""Content of `PIECES`; empty if the model is not in pieces."""

Flag = Literal[0, 1]
_Raw = int | bytes
"""Stored value of an attribute: INT or STRING."""

_INTS: Final = frozenset({"main_context", "embed_mode", "max_size"})
_TEXTS: Final = (
    "ep_sdk_version",
    "onnx_model_filename",
    "hardware_architecture",
    "partition_name",
    "source",
    "notes",
)
ATTRIBUTES: Final = ("main_context", "ep_cache_context", "embed_mode", *_TEXTS, "max_size")


class Payload(bytes):
    """Bytes as the value of an onnx_ir STRING attribute, serialized as they are."""

    def encode(self, encoding: str = "utf-8", errors: str = "strict") -> bytes:
        """Return the bytes themselves; onnx_ir calls this on strings."""
        return bytes(self)


class EPContextNode(Struct, frozen=True, kw_only=True):
    """One EPContext node. Fields are the op's attributes and the node's own name and edges.

    Attributes:
        name: the node's name.
        inputs: names of its inputs, in order; "" for one left out.
        outputs: names of its outputs, in order.
        main_context: 1 if it references context content, 0 if its graph is in another node's
            context.
        ep_cache_context: the payload if `embed_mode` is 1, else the path (UTF-8, relative to the
            model file, `/` between folders); None if absent, as for every attribute below that may
            be None.
        embed_mode: 1 if `ep_cache_context` is the payload, 0 if it is a path.
        ep_sdk_version: the SDK version that made the node.
        onnx_model_filename: the original model's file name.
        hardware_architecture: the hardware that the graph was compiled for.
        partition_name: the partition's name, by which the EP finds the graph.
        source: the EP that the node is for.
        notes: additions of the EP.
        max_size: the EP's maximum size in the context, in bytes; 0 if not given.
        unknown: attributes that are not in the op's schema, by name; read, never written.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    main_context: Flag = 1
    ep_cache_context: bytes | None = None
    embed_mode: Flag = 1
    ep_sdk_version: str | None = None
    onnx_model_filename: str | None = None
    hardware_architecture: str | None = None
    partition_name: str | None = None
    source: str | None = None
    notes: str | None = None
    max_size: int = 0
    unknown: Mapping[str, object] = field(default_factory=dict)

    @property
    def words(self) -> str:
        """The node in messages."""
        return node_words(self.name, "EPContext", self.outputs)

    @property
    def context_path(self) -> str | None:
        """Path in `ep_cache_context`; None if it holds a payload or nothing.

        Raises:
            InvalidGraph: the path is not UTF-8.
        """
        if self.embed_mode or not self.main_context or not self.ep_cache_context:
            return None
        return _decode(self.name, "ep_cache_context", self.ep_cache_context)

    @property
    def own_names(self) -> Mapping[str, str]:
        """Map names of values to their names in the compiled graph, where these differ."""
        text = self.unknown.get(OVERRIDES, b"")
        text = text.decode(errors="replace") if isinstance(text, bytes) else str(text)
        pairs = (pair.partition("=") for pair in text.split(";"))
        return {name: own for name, equals, own in pairs if equals}

    @classmethod
    def from_proto(cls, node: onnx.NodeProto) -> EPContextNode:
        """Read a NodeProto; absent attributes get the op schema's defaults.

        Raises:
            InvalidGraph: an attribute has a type or a value that the schema does not allow.
        """
        import onnx

        kinds = onnx.AttributeProto
        given = (
            (
                a.name,
                "a reference" if a.ref_attr_name else kinds.AttributeType.Name(a.type),
                a.i if a.type == kinds.INT else a.s,
            )
            for a in node.attribute
        )
        return cls._parse(node.name, node.input, node.output, given)

    @classmethod
    def from_ir(cls, node: ir.Node) -> EPContextNode:
        """Read an onnx_ir node, as `from_proto` does.

        Raises:
            InvalidGraph: as in `from_proto`.
        """
        given = (
            (name, "a reference" if a.is_ref() else a.type.name, a.value)
            for name, a in node.attributes.items()
        )
        inputs = ("" if v is None else v.name or "" for v in node.inputs)
        outputs = (v.name or "" for v in node.outputs)
        return cls._parse(node.name or "", inputs, outputs, given)

    @classmethod
    def _parse(
        cls,
        name: str,
        inputs: Iterable[str],
        outputs: Iterable[str],
        attributes: Iterable[tuple[str, str, int | bytes | str]],
    ) -> EPContextNode:
        """Build a node from attributes given by name, type and value."""
        raw: dict[str, _Raw] = {}
        unknown: dict[str, object] = {}
        for key, kind, value in attributes:
            wanted = "INT" if key in _INTS else "STRING"
            if key not in ATTRIBUTES:
                unknown[key] = value
            elif key in raw:
                raise _bad(name, key, "it is given twice")
            elif kind != wanted:
                raise _bad(name, key, f"it is {kind}, not {wanted}")
            else:
                raw[key] = value.encode() if isinstance(value, str) else value
        context = raw.get("ep_cache_context")
        texts = {
            key: _decode(name, key, text)
            for key in _TEXTS
            if isinstance(text := raw.get(key), bytes)
        }
        max_size = raw.get("max_size", 0)
        if not isinstance(max_size, int) or max_size < 0:
            raise _bad(name, "max_size", f"{max_size!r} is not a size in bytes")
        return cls(
            name=name,
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            main_context=_flag(name, "main_context", raw),
            embed_mode=_flag(name, "embed_mode", raw),
            ep_cache_context=bytes(context) if isinstance(context, bytes) else None,
            max_size=max_size,
            unknown=dict(sorted(unknown.items())),
            **texts,
        )

    def attributes(self) -> tuple[ir.Attr, ...]:
        """Return the attributes to write, sorted by name.

        `embed_mode` and `main_context` are always written, the others if they are set.
        """
        import onnx_ir as ir

        attributes = [
            ir.AttrInt64("embed_mode", self.embed_mode),
            ir.AttrInt64("main_context", self.main_context),
        ]
        if self.max_size:
            attributes.append(ir.AttrInt64("max_size", self.max_size))
        if self.ep_cache_context is not None:
            payload = Payload(self.ep_cache_context)
            attributes.append(ir.Attr("ep_cache_context", ir.AttributeType.STRING, payload))
        for key in _TEXTS:
            text = getattr(self, key)
            if text is not None:
                attributes.append(ir.AttrString(key, text))
        return tuple(sorted(attributes, key=lambda attribute: attribute.name))

    def to_ir(self, inputs: Sequence[ir.Value | None], outputs: Sequence[ir.Value]) -> ir.Node:
        """Return an onnx_ir node over these values, named as this node's `inputs` and `outputs`.

        Every one of `outputs` must have its type and shape: ONNX Runtime cannot infer them.

        Raises:
            ValueError: the values are not this node's edges (a bug of the caller).
        """
        import onnx_ir as ir

        names = tuple("" if v is None else v.name for v in inputs), tuple(v.name for v in outputs)
        if names != (self.inputs, self.outputs):
            raise ValueError(f"edges {names} are not those of {self.name!r}")
        return ir.Node(
            DOMAIN, OP_TYPE, inputs, self.attributes(), outputs=outputs, name=self.name, version=1
        )


def is_epcontext(node: onnx.NodeProto | ir.Node) -> bool:
    """Tell whether a node is an EPContext node, whatever its attributes."""
    return node.domain == DOMAIN and node.op_type == OP_TYPE


def ends(node: ir.Node) -> list[str]:
    """Return names of a node's inputs, then of its outputs."""
    return [value.name or "" for value in (*node.inputs, *node.outputs) if value is not None]


def read_all(model: onnx.ModelProto | ir.Model) -> tuple[EPContextNode, ...]:
    """Return the EPContext nodes of the main graph, in order; bodies are not searched.

    Raises:
        InvalidGraph: one of them breaks the op's schema.
    """
    import onnx

    if isinstance(model, onnx.ModelProto):
        return tuple(EPContextNode.from_proto(n) for n in model.graph.node if is_epcontext(n))
    return tuple(EPContextNode.from_ir(n) for n in model.graph if is_epcontext(n))


def cuts(model: onnx.ModelProto) -> Cuts | None:
    """Return the cuts that a model's metadata records; None if there is no valid record."""
    written = next((each.value for each in model.metadata_props if each.key == PIECES), "null")
    try:
        decoded = msgspec.json.decode(written, type=Cuts | None)
    except msgspec.DecodeError:
        return None
    outputs = {name for node in model.graph.node for name in node.output}
    return decoded if outputs.issuperset(name for cut in decoded or () for name in cut) else None


def _flag(node: str, key: str, raw: Mapping[str, _Raw]) -> Flag:
    value = raw.get(key, 1)
    if value == 0:
        return 0
    if value == 1:
        return 1
    raise _bad(node, key, f"{value!r} is neither 0 nor 1")


def count(model: ir.Model) -> int:
    """Return the number of EPContext nodes in the main graph."""
    return sum(is_epcontext(node) for node in model.graph)


def _decode(node: str, key: str, value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise _bad(node, key, "it is not UTF-8 text") from error


def _bad(node: str, key: str, why: str) -> InvalidGraph:
    return InvalidGraph(
        f"attribute {key!r} breaks the schema of the EPContext op",
        node=node,
        why=why,
        remedy="build the model again; `epctx inspect` shows what its nodes hold",
    )


logging.getLogger("onnx_ir.serde").addFilter(lambda record: record.args != ("ep_cache_context",))
