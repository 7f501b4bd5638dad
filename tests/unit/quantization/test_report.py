"""What is told of a quantized model survives on its way into a report."""

from epctx import codec
from epctx.quantization.report import QuantizeReport, TensorLoss
from tests.kit.reports import quantized


def test_it_is_the_same_after_encoding() -> None:
    silent = TensorLoss(name="y", op_type="", sqnr=None)
    found = quantized(outputs=(silent,), limited=("a",), range_floor=-100.0)
    assert codec.decode(codec.encode(found), QuantizeReport) == found
