"""What goes wrong with a registry, as an error of epctx's."""

import sys

import pytest

from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.oci import opening, reference
from epctx.oci.artifact import Damaged
from epctx.transfer.attempts import StoreError

WHERE = reference.parse("oci://host/a:v1")


def test_what_it_does_not_do_is_told_with_its_name() -> None:
    with (
        pytest.raises(StorageError, match="it is full") as error,
        opening.opened(WHERE, insecure=False),
    ):
        raise StoreError("it is full")
    assert error.value.where == "oci://host/a:v1"
    assert error.value.code is Code.REGISTRY and "--insecure" in error.value.remedy
    with (
        pytest.raises(VerificationError, match="what the registry has is nothing"),
        opening.opened(WHERE, insecure=True),
    ):
        raise Damaged("is nothing")


def test_without_the_extra_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "epctx.oci.registry", None)
    with (
        pytest.raises(UsageError, match="which is not installed") as error,
        opening.opened(WHERE, insecure=True),
    ):
        pass
    assert 'pip install "epctx[oci]"' in error.value.remedy
