"""Opens a repository of a registry. This needs `requests`, which comes with an extra."""

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
    "check the name and the rights of the account of `docker login`; the next attempt skips what "
    "was transferred already"
)


@contextlib.contextmanager
def open_repository(reference: Reference, *, insecure: bool) -> Iterator[Repository]:
    """Open the repository of a reference, and translate its errors; send no request yet.

    Raises:
        UsageError: the extra is not installed.
        StorageError: the registry fails a request.
        VerificationError: the registry's content is damaged.
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
            f"the registry failed a request: {error}",
            where=str(reference),
            remedy=_REMEDY if insecure else f"{_REMEDY}; a registry of plain HTTP needs --insecure",
            code=Code.REGISTRY,
        ) from None
    except Damaged as error:
        raise VerificationError(
            f"what the registry has {error}",
            where=str(reference),
            remedy="do not use it: push it again, or ask whoever pushed it",
            code=Code.INTEGRITY,
        ) from None
