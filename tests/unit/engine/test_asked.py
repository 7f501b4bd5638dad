"""What may be asked of a release."""

from __future__ import annotations

import pytest

from epctx.engine.asked import Release
from epctx.errors import UsageError
from tests.kit.projects import Project


@pytest.mark.parametrize(
    ("asked", "what"),
    [
        (Release(attest=True, builder="release job"), "is no URI"),
        (Release(attest=True, builder=""), "is no URI"),
        (Release(attest=True, builder="https://x\n"), "is no URI"),
        (Release(builder="https://ci.example.com"), "none is asked for"),
    ],
)
def test_a_builder_is_a_uri_and_of_an_attestation(
    project: Project, asked: Release, what: str
) -> None:
    from epctx.engine import plan

    with pytest.raises(UsageError, match=what):
        asked.refuse(plan.read(project.manifest))
