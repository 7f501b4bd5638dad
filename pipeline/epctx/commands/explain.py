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
        code: `E`, the exit code in two digits, the kind in two digits.
        title: what is wrong, in one line.
        cause: why epctx says so; Markdown, as what follows.
        example: what leads to it, and what epctx prints then.
        remedy: what to do.
    """

    code: str
    title: str
    cause: str
    example: str
    remedy: str


def explain(code: str) -> Explanation:
    """Explain the error with this code; the letter may be lower case.

    Raises:
        UsageError: there is no such code.
    """
    page = _PAGE.fullmatch(text(code))
    assert page is not None, f"the page of {code} has other sections"
    return Explanation(**page.groupdict())


def text(code: str) -> str:
    """The page of a code, Markdown. Raises as `explain` does."""
    known = code.upper()
    if known not in set(Code):
        raise UsageError(
            f'there is no error "{code}"',
            remedy=f"{did_you_mean(known, Code)}; `epctx explain` lists them",
            code=Code.NO_SUCH_CHOICE,
        )
    return (root() / f"{known}.md").read_text(encoding="utf-8")


def everything() -> Iterator[Explanation]:
    """Explain all errors, by code."""
    return map(explain, sorted(Code))


@functools.cache
def root() -> Traversable:
    """The folder of the pages."""
    packaged = importlib.resources.files("epctx") / "_errors"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs" / "errors"
