"""Sizes in words; did you mean."""

import pytest

from epctx import text
from epctx.text import did_you_mean, first_line, nearest, nearest_file, size_words, suggesting


@pytest.mark.parametrize(
    ("size", "words"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (51_851_264, "51.9 MB"), (3e9, "3.00 GB")],
)
def test_sizes(size: int, words: str) -> None:
    assert size_words(size) == words


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("a\nb"), "a"),
        (RuntimeError("\n \n  a \n"), "a"),
        (MemoryError(), "MemoryError"),
        (RuntimeError(" \n"), "RuntimeError"),
    ],
)
def test_the_first_line_of_an_error_that_says_anything(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_the_nearest_name_whatever_its_case() -> None:
    assert nearest("SOC_modle", ["soc_id", "soc_model"]) == "soc_model"
    assert nearest("x", ["y"]) is None


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("resnet5.onnx", "resnet50.onnx"),
        ("Resnet50.ONNX", "resnet50.onnx"),
        ("nope.onnx", None),  # `.onnx` alone makes nothing alike
        ("resnet50.onx", "resnet50.onnx"),
        ("resnet50", "resnet50.onnx"),
        ("weights.bim", "weights.bin"),
        ("w.bin", "weights.bin"),  # the only one
    ],
)
def test_a_suffix_that_all_have_does_not_make_files_alike(name: str, found: str | None) -> None:
    assert nearest_file(name, ["nonzero.onnx", "resnet50.onnx", "weights.bin"]) == found


@pytest.mark.parametrize(("name", "found"), [("c", "c.onnx"), ("d", None), ("c.bin", None)])
def test_a_suffix_may_be_left_out(name: str, found: str | None) -> None:
    assert nearest_file(name, ["c.onnx", "weights.data"]) == found


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("net.onnx", ["net.onnx.data"]),
        ("net.onnx", ["net.onnx_data"]),
        ("cls", ["cls.data", "cls.onnx"]),  # either
    ],
)
def test_what_belongs_to_a_file_is_not_taken_for_it(name: str, known: list[str]) -> None:
    assert nearest_file(name, known) is None


def test_without_a_near_name_there_is_a_choice() -> None:
    assert did_you_mean("modle", ["model"]) == 'did you mean "model"?'
    assert did_you_mean("zzz", ["b", "a"]) == "choose one of: a, b"


def test_a_choice_of_many_is_not_listed_whole() -> None:
    told = did_you_mean("zzz", [f"{number:03}" for number in range(1060)])
    assert told.startswith("choose one of: 000, 001, ") and told.endswith(", 049 and 1,010 more")


def test_the_effort_is_shared_by_all_suggestions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "_COMPARED", 100)
    names = ["model", "other"]  # 5 characters, against 12
    with suggesting():
        assert did_you_mean("modle", names) == 'did you mean "model"?'
        assert did_you_mean("modle", names) == "choose one of: model, other"
        assert did_you_mean("modle", names) == "correct the name"
        assert nearest("modle", names) is None
    for _ in range(3):  # each has its own
        assert nearest("modle", names) == "model"
    assert nearest("m" * 100, names) is None
