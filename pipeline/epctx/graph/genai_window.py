"""The model before a decoder in a pipeline of onnxruntime-genai: it makes mask and positions.

A decoder as the model builder writes it counts the ones of its mask: that many tokens are there,
those of this run included. onnxruntime-genai 0.18.0 feeds a prompt in windows and fills the last
one with `pad_token_id`; the numbers that it feeds count that padding in later turns of a
conversation, too. So this model counts the tokens itself: its output `NEXT` is its input `COUNT`
of the next run (`output_names_forwarder`), which is 0 in the first. The next tokens overwrite what
padding left in the cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

if TYPE_CHECKING:
    import numpy as np
    import onnx

PAST: Final = "past_seq_len"
TOTAL: Final = "total_seq_len"
"""What onnxruntime-genai feeds, both int32; it knows them only together."""
COUNT: Final = "window_count"
NEXT: Final = "window_count_next"
"""The tokens before this run, and those after it."""
_IR_VERSION: Final = 8
_OPSET: Final = 17


class Fed(Struct, frozen=True, kw_only=True):
    """An input of the decoder that is made here: its name and integer type."""

    name: str
    dtype: np.dtype[np.generic]


def make(*, ids: Fed, mask: Fed, positions: Fed | None, length: int, pad: int) -> bytes:
    """Return the model as a file: the same bytes for the same arguments.

    Args:
        ids: the tokens' ids, a window of them or one.
        mask: `length` of them, 1 up to the last place.
        positions: of the tokens; None: the decoder takes none.
        length: of the decoder's cache.
        pad: the id that fills a window.
    """
    import onnx_ir as ir
    from onnx import TensorProto, helper

    from epctx.graph.serde import canonical

    integer = TensorProto.INT32
    count = helper.make_tensor_value_info(COUNT, integer, [])
    inputs = [
        helper.make_tensor_value_info(PAST, integer, [1, 1]),
        helper.make_tensor_value_info(TOTAL, integer, [1]),
        _value(ids, [1, "sequence"]),
        count,
    ]
    outputs = [_value(mask, [1, length]), helper.make_tensor_value_info(NEXT, integer, [])]
    if positions is not None:
        outputs.append(_value(positions, [1, "sequence"]))
    first = helper.make_tensor(COUNT, integer, [], [0])
    nodes = _nodes(ids, mask, positions, length, pad)
    model = helper.make_model(
        helper.make_graph(list(nodes), "window", inputs, outputs, [first]),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    return canonical.serialize(ir.serde.deserialize_model(model))


def _nodes(
    ids: Fed, mask: Fed, positions: Fed | None, length: int, pad: int
) -> Iterator[onnx.NodeProto]:
    """Yield the nodes. A place outside the cache, and a count that was lost, end in an error."""
    from onnx import TensorProto, helper

    def node(op: str, output: str, *inputs: str, **attributes: Any) -> onnx.NodeProto:
        return helper.make_node(op, inputs, [output], **attributes)

    for name, value in {"/0": 0, "/1": 1, "/length": length, "/pad": pad}.items():
        tensor = helper.make_tensor(name, TensorProto.INT32, [], [value])
        yield node("Constant", name, value=tensor)
    yield node("Shape", "/shape", ids.name, start=1)
    yield node("Cast", "/widths", "/shape", to=TensorProto.INT32)
    yield node("Squeeze", "/width", "/widths")
    yield node("Add", "/beyond", "/width", "/1")
    yield node("Range", "/ordinals", "/1", "/beyond", "/1")
    yield node("Cast", "/tokens", ids.name, to=TensorProto.INT32)
    yield node("Equal", "/padded", "/tokens", "/pad")
    yield node("Where", "/ends", "/padded", "/1", "/ordinals")
    yield node("ReduceMax", "/fed", "/ends", keepdims=0)
    yield node("Add", NEXT, COUNT, "/fed")
    yield node("Equal", "/fresh", COUNT, "/0")
    yield node("GreaterOrEqual", "/later", PAST, "/width")
    yield node("And", "/lost", "/fresh", "/later")
    yield node("Add", "/end", COUNT, "/width")
    yield node("Sub", "/place", "/end", "/1")
    yield node("Where", "/wanted", "/lost", "/length", "/place")
    yield node("Range", "/places", "/0", "/length", "/1")
    yield node("Gather", "/last", "/places", "/wanted")
    yield node("LessOrEqual", "/there", "/places", "/last")
    yield node("Cast", mask.name, "/there", to=_type(mask))
    if positions is not None:
        yield node("Sub", "/before", "/last", "/width")
        yield node("Add", "/now", "/before", "/ordinals")
        yield node("Cast", positions.name, "/now", to=_type(positions))


def _value(fed: Fed, shape: Sequence[int | str]) -> onnx.ValueInfoProto:
    from onnx import helper

    return helper.make_tensor_value_info(fed.name, _type(fed), shape)


def _type(fed: Fed) -> int:
    from onnx import helper

    return int(helper.np_dtype_to_tensor_dtype(fed.dtype))
