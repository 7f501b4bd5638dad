"""References to artifacts, and a registry's errors as epctx's."""

import sys

import pytest

from epctx.error_codes import Code
from epctx.errors import StorageError, UsageError, VerificationError
from epctx.oci import reference
from epctx.oci.artifact import Damaged
from epctx.oci.opening import open_repository
from epctx.transfer.attempts import StoreError

DIGEST = f"sha256:{'a' * 64}"


@pytest.mark.parametrize(
    ("text", "name", "registry"),
    [
        ("oci://host/a", "latest", "host"),
        ("oci://host:5000/a/b-c.d__e:v1.0", "v1.0", "host:5000"),
        (f"oci://host/a:v1@{DIGEST}", DIGEST, "host"),
        (f"oci://[::1]:80/a@{DIGEST}", DIGEST, "[::1]:80"),
        ("oci://docker.io/library/a:V_1", "V_1", "registry-1.docker.io"),
    ],
)
def test_a_digest_goes_before_a_tag(text: str, name: str, registry: str) -> None:
    found = reference.parse(text)
    assert (found.name, found.registry) == (name, registry)
    assert str(found).startswith(text)


@pytest.mark.parametrize(
    "text",
    [
        *(
            "oci://host",
            "oci://host/",
            "oci:///a",
            "oci://host/A",
            "oci://host/a:",
            "https://host/a",
        ),
        *(
            "oci://me:secret@host/a",
            "oci://host/a/../b",
            "oci://host/a:v@sha256:0",
            "oci://host/a?x",
        ),
        *(f"oci://host/{'a' * 300}", "oci://host/a:v1\n", "oci://ho st/a"),
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is not a reference to an artifact in a registry"):
        reference.parse(text)


WHERE = reference.parse("oci://host/a:v1")


def test_what_it_does_not_do_is_told_with_its_name() -> None:
    with (
        pytest.raises(StorageError, match="it is full") as error,
        open_repository(WHERE, insecure=False),
    ):
        raise StoreError("it is full")
    assert error.value.where == "oci://host/a:v1"
    assert error.value.code is Code.REGISTRY and "--insecure" in error.value.remedy
    with (
        pytest.raises(VerificationError, match="what the registry has is nothing"),
        open_repository(WHERE, insecure=True),
    ):
        raise Damaged("is nothing")


def test_without_the_extra_the_command_that_installs_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "epctx.oci.registry", None)
    with (
        pytest.raises(UsageError, match="which is not installed") as error,
        open_repository(WHERE, insecure=True),
    ):
        pass
    assert 'pip install "epctx[oci]"' in error.value.remedy
