"""Each cause of the closed list from what is measured, and what is tried for it."""

import pytest

from epctx.commands.bisect.causes import Change, Inquiry
from epctx.manifest import (
    ModelGroup,
    PartitionSettings,
    ProviderSpec,
    QuantizeSettings,
    TensorOverride,
    Tolerance,
)
from epctx.providers import registry
from epctx.providers.base import ExecutionProvider, Precision
from epctx.providers.onnxruntime.qnn.faults import FAULTS
from epctx.providers.reference import ReferenceExecutionProvider
from epctx.quantization.ranges import Ranges
from tests.kit import onnx_text

MODEL = """
g (float[1, 1, 8, 8] x) => (float[1, 1, 8, 8] y)
<float[1] large = {3.0e5}, float[1] small = {1.0e-6}> {
    [grown] g = Mul(x, large)
    [shrunk] s = Mul(g, small)
    [pooled] p = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (s)
    [cut] r = Relu(p)
    [last] y = Tanh(r)
}
"""
GRAPH = onnx_text.model(MODEL).graph
NODES = {str(node.name): node for node in GRAPH}
USUAL = {"x": (-1.0, 1.0), "s": (-0.5, 0.5), "p": (-0.5, 0.5), "r": (0.0, 0.5), "y": (0.0, 0.5)}


class Halves(ReferenceExecutionProvider):
    """An EP that computes in float16 and knows of its faults what QNN does."""

    faults = FAULTS

    def __init__(self) -> None:
        super().__init__({})

    def tolerance(self, precision: Precision, dtype: str) -> Tolerance:
        return Tolerance(saturates_at=65504.0)


def inquiry(
    node: str,
    ranges: Ranges,
    *,
    target: str = "default",
    group: ModelGroup | None = None,
    quantized: Ranges | None = None,
    provider: ExecutionProvider | None = None,
) -> Inquiry:
    return Inquiry(
        node=NODES[node],
        target=target,
        group=group or ModelGroup(name="g", models=()),
        providers=[provider or Halves()],
        ranges=ranges,
        quantized=quantized or {},
        quantizing=quantized is not None,
    )


def excluded(change: Change) -> tuple[tuple[str, ...], tuple[str, ...]]:
    partition = change[1].partition
    return partition.exclude_nodes, partition.exclude_op_types


def test_numbers_beyond_float16_are_kept_off_with_all_that_they_join() -> None:
    asked = inquiry("grown", {**USUAL, "g": (-3e5, 3e5)})
    cause = asked.cause()
    assert cause.kind == "fp16 overflow" and "'large', 'g'" in cause.why
    assert list(cause.ranges) == ["x", "large", "g"]
    first, second = asked.changes(cause)
    assert excluded(first) == (("grown", "shrunk"), ())
    assert first[0].manifest == {
        "model_groups": {"g": {"partition": {"exclude": {"nodes": ["grown", "shrunk"]}}}}
    }
    assert excluded(second) == ((), ("Mul",))


def test_an_ep_that_computes_in_float32_overflows_nothing() -> None:
    ep = registry.create(ProviderSpec(alias="ref", provider="ReferenceExecutionProvider"))
    asked = inquiry("grown", {**USUAL, "g": (-3e5, 3e5)}, provider=ep)
    assert asked.cause().kind == "unknown"


def test_numbers_below_float16_are_told_apart_from_zero() -> None:
    tiny = inquiry("pooled", {**USUAL, "s": (-1e-7, 1e-7)})
    assert tiny.cause().kind == "fp16 underflow"
    assert excluded(next(tiny.changes(tiny.cause()))) == (("pooled", "shrunk"), ())
    assert inquiry("last", {**USUAL, "r": (0.0, 0.0)}).cause().kind == "unknown"


def test_a_known_fault_is_quoted_with_what_mends_it() -> None:
    asked = inquiry("pooled", USUAL)
    cause = asked.cause()
    assert (cause.kind, cause.remedy[:16]) == ("known EP fault", "keep AveragePool")
    assert [excluded(each) for each in asked.changes(cause)] == [
        (("pooled",), ()),
        ((), ("AveragePool",)),
    ]


def test_what_is_not_known_is_said_and_the_node_alone_is_tried_first() -> None:
    group = ModelGroup(name="g", models=(), partition=PartitionSettings(exclude_nodes=("/a*",)))
    asked = inquiry("last", USUAL, group=group)
    assert asked.cause().kind == "unknown"
    assert [excluded(each) for each in asked.changes(asked.cause())] == [
        (("/a*", "last"), ()),
        (("/a*",), ("Tanh",)),
    ]


@pytest.mark.parametrize(
    ("target", "place"),
    [("default", ["model_groups", "g"]), ("npu", ["targets", "npu", "model_groups", "g"])],
)
def test_a_proposal_is_written_where_the_target_cannot_outdo_it(
    target: str, place: list[str]
) -> None:
    asked = inquiry("last", USUAL, target=target)
    written = next(asked.changes(asked.cause()))[0].manifest
    for key in place:
        written = written[key]
    assert written == {"partition": {"exclude": {"nodes": ["last"]}}}


def test_a_node_without_a_name_is_excluded_by_its_type() -> None:
    NODES["last"].name = None
    try:
        asked = inquiry("last", USUAL)
        assert excluded(next(asked.changes(asked.cause()))) == ((), ("Tanh",))
    finally:
        NODES["last"].name = "last"


def test_a_name_with_brackets_is_no_pattern() -> None:
    NODES["last"].name = "last[0]"
    try:
        asked = inquiry("last", USUAL)
        assert excluded(next(asked.changes(asked.cause())))[0] == ("last[[]0]",)
    finally:
        NODES["last"].name = "last"


@pytest.mark.parametrize(
    ("quantized", "words"),
    [((-0.1, 0.1), "clipped"), ((-50.0, 50.0), "few steps"), ((-0.5, 0.5), None)],
)
def test_a_range_that_does_not_fit_is_made_to(
    quantized: tuple[float, float], words: str | None
) -> None:
    settings = QuantizeSettings(overrides={"s": TensorOverride(type="uint16", range=quantized)})
    group = ModelGroup(name="g", models=(), quantize=settings)
    asked = inquiry("shrunk", USUAL, group=group, quantized={"s": quantized})
    cause = asked.cause()
    if words is None:
        assert cause.kind == "unknown"
        assert not any("range" in str(each.manifest) for each, _ in asked.changes(cause))
        return
    assert cause.kind == "quantization range" and words in cause.why
    proposal, changed = next(asked.changes(cause))
    assert changed.quantize is not None
    override = changed.quantize.overrides["s"]
    assert override == TensorOverride(type="uint16", range=(-0.5, 0.5)), "the type is kept"
    assert proposal.manifest == {
        "model_groups": {"g": {"quantize": {"overrides": {"s": {"range": [-0.5, 0.5]}}}}}
    }


def manifests(asked: Inquiry) -> list[object]:
    """What of `quantize` each change writes; None if it writes none."""
    every = [each.manifest for each, _ in asked.changes(asked.cause())]
    return [written["model_groups"]["g"].get("quantize") for written in every]


@pytest.mark.parametrize("activations", ["uint8", "uint16"])
def test_what_is_quantized_gets_more_bits_or_stays_float(activations: str) -> None:
    settings = QuantizeSettings(activations=activations, exclude_nodes=("cut",))
    group = ModelGroup(name="g", models=(), quantize=settings)
    asked = inquiry("shrunk", USUAL, group=group, quantized={"s": (-0.5, 0.5)})
    more = [{"overrides": {"s": {"type": "uint16"}}}, {"activations": "uint16"}]
    node, kind = [
        {"exclude": {"nodes": ["cut", "shrunk"]}},
        {"exclude": {"nodes": ["cut"], "op_types": ["Mul"]}},
    ]
    narrow = activations == "uint8"
    assert manifests(asked) == ([more[0], node, more[1], kind] if narrow else [node, kind])
    changed = [each.quantize for _, each in asked.changes(asked.cause())]
    assert changed[-1] is not None
    assert (changed[-1].exclude_nodes, changed[-1].exclude_op_types) == (("cut",), ("Mul",))


def test_what_the_ep_computes_wrongly_of_a_quantized_model_may_stay_float() -> None:
    """QNN computes some quantized nodes wrongly and their float ones right (BatchNormalization)."""
    group = ModelGroup(name="g", models=(), quantize=QuantizeSettings(activations="uint16"))
    asked = inquiry("last", USUAL, group=group)
    off, types, node, kind = manifests(asked)
    assert (off, types) == (None, None), "kept off the EP first"
    assert node == {"exclude": {"nodes": ["last"]}} and kind == {"exclude": {"op_types": ["Tanh"]}}
