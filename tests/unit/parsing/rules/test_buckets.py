from pathlib import Path

from epctx.error_codes import Code
from epctx.parsing import document
from epctx.parsing.rules import check


def problems(models: str) -> list[tuple[str, Code]]:
    text = f"models: {{{models}}}".encode()
    root = document.parse(text, file="m.yaml", path=Path("m.yaml")).root
    return [(each.what, each.code) for each in check.check_buckets(root, frozenset())]


def test_what_is_right() -> None:
    assert problems("a: {dimensions: {s: [8, 16], t: [9, 9]}}, a_s8: {}") == []


def test_a_name_is_there_once() -> None:
    same = "as a model is called already"
    assert problems("a: {dimensions: {s: [8, 16]}}, a_s16: {}") == [
        (f"makes a model a_s16, {same}", Code.OUTPUT_CLASH)
    ]
    ((what, code),) = problems("a: {dimensions: {s: [8, 16]}, bucket_name: x}")
    assert (what, code) == (
        "makes a model x, as a bucket of a is called already",
        Code.OUTPUT_CLASH,
    )


def test_a_name_is_safe_as_a_file_name() -> None:
    ((what, code),) = problems("a: {dimensions: {s: [8]}, bucket_name: '../{s}'}")
    assert what.startswith('makes a model "../8", which') and code is Code.WRONG_NAME


def test_lists_are_of_one_length() -> None:
    ((what, _),) = problems("a: {dimensions: {s: [8, 16], t: [9]}}")
    assert what == "lists 1 size, and s lists 2"


def test_what_the_schema_refuses_is_passed_over() -> None:
    text = b"models: {a: {dimensions: {s: [8, 16], t: [x]}}}"
    root = document.parse(text, file="m.yaml", path=Path("m.yaml")).root
    listed = root.get("models", "a", "dimensions", "t")
    assert listed is not None
    assert list(check.check_buckets(root, frozenset({listed}))) == []
    assert len(list(check.check_buckets(root, frozenset()))) == 1
