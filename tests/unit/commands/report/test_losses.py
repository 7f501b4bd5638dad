"""What a page and a build's output tell of a model that was quantized."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.commands.report import losses, page
from epctx.quantization.report import TensorLoss
from tests.kit.reports import chain, quantized, report


def tensors(count: int) -> tuple[TensorLoss, ...]:
    return tuple(TensorLoss(name=f"t{n}", op_type="Relu", sqnr=10 + n / 10) for n in range(count))


def test_the_worst_tensor_is_first_and_one_without_noise_is_none() -> None:
    found = quantized(outputs=(TensorLoss(name="y", op_type="MatMul", sqnr=15.0),))
    quiet = TensorLoss(name="copied", op_type="Reshape", sqnr=None)
    found = replace(found, tensors=(*tensors(100), quiet))
    names = [row.name for row in losses.rows(found)]
    assert names[0] == "t0" and names[50] == "t50" and names[51] == "y"
    assert "copied" not in names
    drawn = losses.plot(found)
    assert drawn is not None
    assert drawn.words == "101 tensors from 10.0 dB (t0) to 19.9 dB"
    assert [column.words for column in drawn.columns if column.output] == ["y (MatMul): 15.0 dB"]


def test_of_many_tensors_each_column_is_the_worst_of_its_own_and_no_output_is_lost() -> None:
    output = TensorLoss(name="y", op_type="", sqnr=10.05)
    drawn = losses.plot(quantized(outputs=(output,), tensors=tensors(999)))
    assert drawn is not None and len(drawn.columns) == 200
    assert drawn.columns[0].words == "y (weight): 10.1 dB and 4 more"
    last = drawn.columns[-1]
    assert last.words == "t994 (Relu): 109.4 dB and 4 more"
    assert last.height == losses.HEIGHT, "what is beyond the plot is at its edge"
    assert last.x + last.width <= losses.WIDTH


def test_where_nothing_is_lost_nothing_is_drawn() -> None:
    assert losses.plot(quantized(outputs=(), tensors=())) is None


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
    told = losses.warned(replace(quantized(), **changes))
    assert [each.what for each in told] == ([] if what is None else [what])


def test_in_a_line() -> None:
    assert losses.summary(quantized()) == (
        "qnn: activations uint16, weights uint8, 100 samples, 11 of 12 nodes, 4.0 kB -> 1.0 kB, "
        "output 'y' 27.2 dB"
    )
    blocks = quantized(activations=None, weights="int4", samples=0)
    assert losses.summary(blocks).startswith("qnn: activations float, weights int4, 11 of 12")
    assert "8 RANDOM samples" in losses.summary(quantized(samples=8, random=True))


def test_the_page_has_the_worst_twenty_and_folds_the_others(tmp_path: Path) -> None:
    found = quantized(tensors=tensors(30), bodies=("node 'loop' (Loop)",), limited=("scores",))
    text = page.render(report(replace(chain(12), quantized=found)), tmp_path)
    head, _, folded = text.partition("11 more tensors")
    assert "<code>t0</code>" in head and "<code>t19</code>" in head
    assert "<code>t20</code>" not in head and "<code>t20</code>" in folded
    assert "→ set `quantize.range_floor: -100`" in head
    assert "those of node &#39;loop&#39; (Loop)" in head
    assert text.count('<svg class="losses"') == 2, "of two targets"


def test_a_model_that_is_not_quantized_has_nothing_of_it(tmp_path: Path) -> None:
    assert 'class="quantized"' not in page.render(report(), tmp_path)
