"""The model before a decoder in a pipeline of onnxruntime-genai: it makes mask and positions.

A decoder as the model builder writes it counts the ones of its mask: that many tokens are there. Of
a prompt that is fed in windows onnxruntime-genai 0.18.0 says it otherwise: `past_seq_len` is the
index of a window's last place, padding included, and then of the token. The mask and the positions
follow from that. What padding writes into the cache, the next tokens overwrite; nothing before sees
it, since attention is causal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    import onnx

PAST: Final = "past_seq_len"
TOTAL: Final = "total_seq_len"
"""What onnxruntime-genai feeds, both int32; it knows them only together."""
_IR_VERSION: Final = 8
_OPSET: Final = 17


class Fed(Struct, frozen=True, kw_only=True):
    """An input of the decoder that is made here: its name and integer type."""

    name: str
    dtype: np.dtype[np.generic]


def make(*, ids: Fed, mask: Fed, positions: Fed | None, length: int) -> bytes:
    """The model, as a file: the same bytes for the same arguments.

    Args:
        ids: the tokens' ids, of which there are as many as positions.
        mask: `length` of them, 1 up to the last place.
        positions: of the tokens; None: the decoder takes none.
        length: of the decoder's cache.
    """
    import onnx_ir as ir
    from onnx import TensorProto, helper

    from epctx.graph.serde import canonical

    nodes = [*_mask(mask, length), *(_positions(ids, positions) if positions is not None else ())]
    inputs = [
        helper.make_tensor_value_info(PAST, TensorProto.INT32, [1, 1]),
        helper.make_tensor_value_info(TOTAL, TensorProto.INT32, [1]),
    ]
    outputs = [_value(mask, [1, length])]
    if positions is not None:
        inputs.append(_value(ids, [1, "sequence"]))
        outputs.append(_value(positions, [1, "sequence"]))
    model = helper.make_model(
        helper.make_graph(nodes, "window", inputs, outputs),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    return canonical.serialize(ir.serde.deserialize_model(model))


def _mask(mask: Fed, length: int) -> Iterator[onnx.NodeProto]:
    from onnx import helper

    yield from _constants({"window/zero": 0, "window/one": 1, "window/length": length})
    yield helper.make_node(
        "Range", ["window/zero", "window/length", "window/one"], ["window/places"]
    )
    yield helper.make_node("LessOrEqual", ["window/places", PAST], ["window/there"])
    yield helper.make_node("Cast", ["window/there"], [mask.name], to=_type(mask))


def _positions(ids: Fed, positions: Fed) -> Iterator[onnx.NodeProto]:
    """The last of them is `past_seq_len`."""
    from onnx import TensorProto, helper

    yield helper.make_node("Shape", [ids.name], ["window/shape"], start=1)
    yield helper.make_node("Cast", ["window/shape"], ["window/tokens"], to=TensorProto.INT32)
    yield helper.make_node("Squeeze", ["window/tokens"], ["window/count"])
    yield helper.make_node("Sub", ["window/one", "window/count"], ["window/first"])
    yield helper.make_node("Range", ["window/first", "window/one", "window/one"], ["window/back"])
    yield helper.make_node("Add", [PAST, "window/back"], ["window/now"])
    yield helper.make_node("Cast", ["window/now"], [positions.name], to=_type(positions))


def _constants(values: Mapping[str, int]) -> Iterator[onnx.NodeProto]:
    from onnx import TensorProto, helper

    for name, value in values.items():
        tensor = helper.make_tensor(name, TensorProto.INT32, [], [value])
        yield helper.make_node("Constant", [], [name], value=tensor)


def _value(fed: Fed, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(fed.name, _type(fed), shape)


def _type(fed: Fed) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(fed.dtype))
