"""Packages that come with an extra: one command needs each, and says so where it is missing."""

from __future__ import annotations

import importlib

from epctx.error_codes import Code
from epctx.errors import UsageError


def require(module: str, extra: str) -> None:
    """See that a module can be imported.

    Raises:
        UsageError: it cannot; the extra of epctx that brings it is named.
    """
    try:
        importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise UsageError(
            f"this needs a package that is not installed, {name}",
            remedy=f'pip install "epctx[{extra}]"',
            code=Code.ENVIRONMENT,
        ) from error
