"""What `epctx explain` knows of errors."""

import pytest

from epctx.commands import explain
from epctx.error_codes import Code
from epctx.errors import UsageError


@pytest.mark.parametrize("code", sorted(Code))
def test_each_page_has_all_sections_and_a_command_that_is_run(code: Code) -> None:
    page = explain.explain(code)
    assert page.code == code
    assert page.title[0].islower() and not page.title.endswith(".")
    assert "```console\n$ " in page.example
    assert all((page.cause.strip(), page.remedy.strip()))
    assert all(len(line) <= 120 for line in (page.cause + "\n" + page.remedy).splitlines())


def test_a_code_is_found_however_it_is_written() -> None:
    assert explain.explain("e0312") == explain.explain("E0312")
    assert explain.text("E0312").startswith("# E0312: ")


def test_an_unknown_code_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="there is no error") as caught:
        explain.explain("E0399")
    assert caught.value.code is Code.NO_SUCH_CHOICE
    assert 'did you mean "E039' in caught.value.remedy or 'did you mean "E03' in caught.value.remedy
