"""Codes of errors: none goes or changes its meaning, each has its page, each error has one."""

import re
from pathlib import Path

import pytest

from epctx import errors
from epctx.commands import explain
from epctx.error_codes import Code
from epctx.errors import EpctxError

STABLE = Path(__file__).parent / "error_codes.txt"
"""Every code with its name in the package: lines may be added, and none may change."""
CLASSES: list[type[EpctxError]] = [EpctxError, *EpctxError.__subclasses__()]
SOURCES = Path(errors.__file__).parent


def test_no_code_goes_or_changes_its_meaning() -> None:
    stable = dict(line.split() for line in STABLE.read_text(encoding="utf-8").splitlines())
    assert {code.value: code.name for code in Code} == stable


def test_the_codes_say_the_exit_code() -> None:
    exit_codes = {error.exit_code for error in CLASSES}
    assert all(re.fullmatch(r"E\d{4}", code) for code in Code)
    assert {int(code[1:3]) for code in Code} == exit_codes - {130} | {13}


@pytest.mark.parametrize("error", CLASSES)
def test_each_class_has_a_code_of_its_exit_code(error: type[EpctxError]) -> None:
    assert f"{error.exit_code:02}".startswith(error.code[1:3])


def test_each_code_has_its_page_and_each_page_its_code() -> None:
    pages = {page.name.removesuffix(".md") for page in explain.root().iterdir()}
    assert pages == set(Code)
    assert all(
        page.code == code for code, page in zip(sorted(Code), explain.everything(), strict=True)
    )


def test_each_code_is_of_some_error() -> None:
    """A page of an error that nobody meets would be a promise that nobody keeps."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCES.rglob("*.py")]
    schemas = (SOURCES.parents[1] / "schemas" / "providers").glob("*.json")
    used = set(re.findall(r"Code\.([A-Z_]+)", "\n".join(texts)))
    used |= {Code(c).name for s in schemas for c in re.findall(r'"code": "(E\d+)"', s.read_text())}
    assert {code.name for code in Code} == used
