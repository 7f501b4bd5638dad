"""What names an artifact, and what does not."""

import pytest

from epctx.errors import UsageError
from epctx.oci import reference

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
    with pytest.raises(UsageError, match="names nothing in a registry"):
        reference.parse(text)
