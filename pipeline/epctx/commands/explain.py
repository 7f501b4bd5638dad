"""Pages of `epctx explain`: Markdown for each kind of error, found by its code.

The pages are in the wheel as `epctx/_errors`, else in the checkout's `docs/errors`.
"""

from __future__ import annotations

import functools
import importlib.resources
import re
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path

from epctx.error_codes import Code
from epctx.errors import UsageError
from epctx.text import Brief, did_you_mean

_PAGE = re.compile(
    r"# (?P<code>E\d{4}): (?P<title>[^\n]+)\n\n"
    r"## Cause\n\n(?P<cause>.+?)\n\n"
    r"## Example\n\n(?P<example>.+?)\n\n"
    r"## Remedy\n\n(?P<remedy>.+)\n",
    re.DOTALL,
)
"""Every page has these sections."""


class Explanation(Brief, frozen=True, kw_only=True):
    """Explanation of one kind of error.

    Attributes:
        code: `E`, two digits for the exit code, two digits for the kind.
        title: the fault in one line.
        cause: reason for the error, as Markdown.
        example: a case that causes the error, and epctx's message, as Markdown.
        remedy: steps to fix it, as Markdown.
    """

    code: str
    title: str
    cause: str
    example: str
    remedy: str


def explain(code: str) -> Explanation:
    """Explain the error with this code; the letter may be lower case.

    Raises:
        UsageError: the code does not exist.
    """
    page = _PAGE.fullmatch(text(code))
    assert page is not None, f"the page of {code} has other sections"
    return Explanation(**page.groupdict())


def text(code: str) -> str:
    """Markdown page of a code. Raises as `explain` does."""
    normalized = code.upper()
    if normalized not in set(Code):
        raise UsageError(
            f'there is no error code "{code}"',
            remedy=f"{did_you_mean(normalized, Code)}; `epctx explain` lists them",
            code=Code.NO_SUCH_CHOICE,
        )
    return (root() / f"{normalized}.md").read_text(encoding="utf-8")


def everything() -> Iterator[Explanation]:
    """Explain all errors, in the order of their codes."""
    return map(explain, sorted(Code))


@functools.cache
def root() -> Traversable:
    """Folder of the pages."""
    packaged = importlib.resources.files("epctx") / "_errors"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs" / "errors"
