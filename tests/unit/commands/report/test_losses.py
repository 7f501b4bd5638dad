"""What a page and a build's output tell of a model that was quantized."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.report import page, sections
from epctx.quantization.report import TensorLoss
from tests.kit.reports import chain, quantized, report


def tensors(count: int) -> tuple[TensorLoss, ...]:
    return tuple(TensorLoss(name=f"t{n}", op_type="Relu", sqnr=10 + n / 10) for n in range(count))


def test_the_worst_tensor_is_first_and_one_without_noise_is_none() -> None:
    found = quantized(outputs=(TensorLoss(name="y", op_type="MatMul", sqnr=15.0),))
    quiet = TensorLoss(name="copied", op_type="Reshape", sqnr=None)
    found = replace(found, tensors=(*tensors(100), quiet))
    names = [row.name for row in sections.loss_rows(found)]
    assert names[0] == "t0" and names[50] == "t50" and names[51] == "y"
    assert "copied" not in names
    drawn = sections.loss_plot(found)
    assert drawn is not None
    assert drawn.words == "101 tensors from 10.0 dB (t0) to 19.9 dB"
    assert [column.words for column in drawn.columns if column.output] == ["y (MatMul): 15.0 dB"]


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({}, None),
        ({"random": True}, "its ranges are of RANDOM samples"),
        ({"samples": 1}, "its ranges are of a single sample"),
        (
            {"limited": ("a", "b", "c", "d")},
            "masks leave nothing of the other values of 'a', 'b', 'c' and 1 more",
        ),
        ({"limited": ("a",), "range_floor": 100.0}, None),
        ({"samples": 0, "random": False, "activations": None}, None),
    ],
)
def test_what_a_user_should_know(changes: dict[str, object], what: str | None) -> None:
    told = sections.quantize_warnings(replace(quantized(), **changes))
    assert [each.what for each in told] == ([] if what is None else [what])


def test_the_page_has_the_worst_twenty_and_folds_the_others(tmp_path: Path) -> None:
    found = quantized(tensors=tensors(30), bodies=("node 'loop' (Loop)",), limited=("scores",))
    text = page.render(report(replace(chain(12), quantized=found)), tmp_path)
    head, _, folded = text.partition("11 more tensors")
    assert "<code>t0</code>" in head and "<code>t19</code>" in head
    assert "<code>t20</code>" not in head and "<code>t20</code>" in folded
    assert "→ set `quantize.range_floor: -100`" in head
    assert "those of node &#39;loop&#39; (Loop)" in head
    assert text.count('<svg class="losses"') == 2, "of two targets"
