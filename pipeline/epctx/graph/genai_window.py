"""The model before a decoder in a pipeline of onnxruntime-genai: it makes mask and positions.

A decoder that the model builder wrote counts the ones in its mask: their number is the number of
tokens, those of this run included. onnxruntime-genai 0.18.0 feeds a prompt in windows and fills the
last one with `pad_token_id`. In later turns of a conversation, the numbers that it feeds count this
padding, too. So this model counts the tokens itself: its output `NEXT` is its input `COUNT` of the
next run (`output_names_forwarder`); `COUNT` is 0 in the first run. The next tokens overwrite the
cache entries of the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import onnx

    from epctx.graph.inputs import InputSpec

PAST: Final = "past_seq_len"
TOTAL: Final = "total_seq_len"
"""Inputs that onnxruntime-genai feeds, both int32; it supports them only together."""
COUNT: Final = "window_count"
NEXT: Final = "window_count_next"
"""Names of the counts of tokens before this run (COUNT) and after it (NEXT)."""
_IR_VERSION: Final = 8
_OPSET: Final = 17


def make(ids: InputSpec, masks: Sequence[InputSpec], *, length: int, pad: int) -> bytes:
    """Return the model as a file: the same bytes for the same arguments.

    Args:
        ids: the input of token ids: those of a window, or of one token.
        masks: the mask, with 1 up to the last place, and positions if the decoder takes them.
        length: length of the decoder's cache.
        pad: the id that fills a window.
    """
    import onnx_ir as ir
    from onnx import TensorProto, helper

    from epctx.graph.serde import canonical

    def value(name: str, shape: Sequence[int | str], like: InputSpec | None = None) -> Any:
        kind = TensorProto.INT32
        if like is not None and like.dtype is not None:
            kind = helper.np_dtype_to_tensor_dtype(like.dtype)
        return helper.make_tensor_value_info(name, kind, shape)

    def constant(name: str, number: int) -> onnx.TensorProto:
        return helper.make_tensor(name, TensorProto.INT32, [], [number])

    def add(op: str, output: str, *inputs: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, inputs, [output], **attributes))
        return output

    nodes: list[onnx.NodeProto] = []
    mask, *positions = masks
    outputs = [value(mask.name, [1, length], mask), value(NEXT, [])]
    for name, number in {"/0": 0, "/1": 1, "/length": length, "/pad": pad}.items():
        add("Constant", name, value=constant(name, number))
    tokens = add("Cast", "/tokens", ids.name, to=TensorProto.INT32)
    shape = add("Shape", "/shape", ids.name, start=1)
    width = add("Squeeze", "/width", add("Cast", "/sizes", shape, to=TensorProto.INT32))
    ordinals = add("Range", "/ordinals", "/1", add("Add", "/beyond", width, "/1"), "/1")
    ends = add("Where", "/ends", add("Equal", "/padded", tokens, "/pad"), "/1", ordinals)
    add("Add", NEXT, COUNT, add("ReduceMax", "/fed", ends, keepdims=0))
    # A lost count gives a place beyond the cache, and Gather ends the run with an error.
    fresh, later = add("Equal", "/fresh", COUNT, "/0"), add("GreaterOrEqual", "/later", PAST, width)
    place = add("Sub", "/place", add("Add", "/end", COUNT, width), "/1")
    place = add("Where", "/checked", add("And", "/lost", fresh, later), "/length", place)
    places = add("Range", "/places", "/0", "/length", "/1")
    last = add("Gather", "/last", places, place)
    there = add("LessOrEqual", "/there", places, last)
    add("Cast", mask.name, there, to=outputs[0].type.tensor_type.elem_type)
    for spec in positions:
        outputs.append(value(spec.name, [1, "sequence"], spec))
        now = add("Add", "/now", add("Sub", "/before", last, width), ordinals)
        add("Cast", spec.name, now, to=outputs[-1].type.tensor_type.elem_type)
    inputs = [value(PAST, [1, 1]), value(TOTAL, [1]), value(ids.name, [1, "sequence"], ids)]
    inputs.append(value(COUNT, []))
    model = helper.make_model(
        helper.make_graph(nodes, "window", inputs, outputs, [constant(COUNT, 0)]),
        opset_imports=[helper.make_opsetid("", _OPSET)],
        ir_version=_IR_VERSION,
    )
    return canonical.serialize(ir.serde.deserialize_model(model))
