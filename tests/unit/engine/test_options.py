"""What may be asked of a release."""

from __future__ import annotations

import pytest

from epctx.engine.options import ReleaseOptions
from epctx.errors import UsageError
from tests.kit.projects import Project


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (ReleaseOptions(attest=True, builder="release job"), "is not a URI"),
        (ReleaseOptions(attest=True, builder=""), "is not a URI"),
        (ReleaseOptions(attest=True, builder="https://x\n"), "is not a URI"),
        (ReleaseOptions(builder="https://ci.example.com"), "none is requested"),
    ],
)
def test_a_builder_is_a_uri_and_of_an_attestation(
    project: Project, asked: ReleaseOptions, what: str
) -> None:
    from epctx.engine import plan

    with pytest.raises(UsageError, match=what):
        asked.refuse(plan.read(project.manifest))
