"""Links and losses in the sections of a page."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from msgspec.structs import replace

from epctx.commands.report import page, sections
from epctx.commands.report.sections import Links
from epctx.quantization.report import TensorLoss
from tests.kit.reports import chain, quantized, report


def test_what_is_not_there_is_not_pointed_to(tmp_path: Path) -> None:
    links = Links(folder=tmp_path, page=tmp_path)
    assert links.to("a.bin") is None
    assert links.to("a" * 5000) is None, "a name that no file can have"
    assert links.to() is None, "a folder"


def test_nothing_outside_is_pointed_to(tmp_path: Path) -> None:
    outside = tmp_path / "outside.txt"
    outside.touch()
    (tmp_path / "dist/a").mkdir(parents=True)
    links = Links(folder=tmp_path / "dist", page=tmp_path / "dist")
    for parts in (("../outside.txt",), ("a", "..", "../outside.txt"), (str(outside),)):
        assert links.to(*parts) is None


@pytest.mark.needs("POSIX", "there these are names of files")
@pytest.mark.parametrize("name", ["c:x", "c:\\x", "\\\\host\\share", "a\\..\\x"])
def test_what_leads_outside_on_windows_is_not_pointed_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    assert Links(folder=tmp_path, page=tmp_path).to(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "a b#c;d%41&'.bin",
        "ü.log",
        pytest.param(
            'x"><b>?.log', marks=pytest.mark.needs("POSIX", "Windows has no such name of a file")
        ),
    ],
)
def test_every_name_leads_to_its_file_and_nowhere_else(tmp_path: Path, name: str) -> None:
    (tmp_path / name).touch()
    found = Links(folder=tmp_path, page=tmp_path).to(name)
    assert found is not None
    parts = urlsplit(found)
    assert (parts.scheme, parts.netloc, parts.query, parts.fragment) == ("", "", "", "")
    assert unquote(parts.path) == f"./{name}" and not set(found) & set("\"'<>")


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
