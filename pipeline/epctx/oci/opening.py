"""Opens a repository of a registry; `requests`, which it needs, comes with an extra."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.oci.artifact import Damaged
from epctx.oci.reference import Reference
from epctx.transfer.attempts import StoreError

if TYPE_CHECKING:
    from epctx.oci.registry import Repository

_REMEDY: Final = (
    "check the name, and that who is logged in (`docker login`) may do it; what has moved already "
    "does not move again"
)


@contextlib.contextmanager
def open_repository(reference: Reference, *, insecure: bool) -> Iterator[Repository]:
    """Give the repository of a reference, and turn its errors into epctx's; sends no request yet.

    Raises:
        UsageError: the extra is not installed.
        StorageError: the registry fails a request.
        VerificationError: the registry has content that is damaged.
    """
    try:
        from epctx.oci.registry import Repository
    except ModuleNotFoundError as error:
        raise UsageError(
            f"a registry needs {error.name}, which is not installed",
            remedy='install it: pip install "epctx[oci]"',
            code=Code.ENVIRONMENT,
        ) from error
    try:
        yield Repository(reference, insecure=insecure)
    except StoreError as error:
        raise StorageError(
            f"the registry does not do it: {error}",
            where=str(reference),
            remedy=_REMEDY if insecure else f"{_REMEDY}; a registry of plain HTTP needs --insecure",
            code=Code.REGISTRY,
        ) from None
    except Damaged as error:
        raise VerificationError(
            f"what the registry has {error}",
            where=str(reference),
            remedy="do not use it: push it anew, or ask who did",
            code=Code.INTEGRITY,
        ) from None
