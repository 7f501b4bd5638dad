"""Who builds, as CI systems tell it."""

from __future__ import annotations

import pytest

from epctx.engine.output import attestation

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_WORKFLOW_REF": "org/models/.github/workflows/release.yml@refs/tags/v1",
}
GITLAB = {"CI_PROJECT_URL": "https://gitlab.com/org/models", "CI_RUNNER_ID": "12"}
AZURE = {
    "SYSTEM_COLLECTIONURI": "https://dev.azure.com/org/",
    "SYSTEM_TEAMPROJECTID": "5f3c",
    "SYSTEM_DEFINITIONID": "7",
}
JENKINS = {"JENKINS_URL": "https://ci.example.com/", "JOB_NAME": "models/release"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (
            GITHUB,
            "https://github.com/org/models/.github/workflows/release.yml@refs/tags/v1",
        ),
        (GITLAB, "https://gitlab.com/org/models/-/runners/12"),
        (AZURE, "https://dev.azure.com/org/5f3c/_build?definitionId=7"),
        (JENKINS, "https://ci.example.com/job/models/release"),
        ({}, None),
        ({"CI": "true"}, None),
        ({**GITHUB, "GITHUB_WORKFLOW_REF": ""}, None),
        ({**GITLAB, "CI_PROJECT_URL": "file:///etc"}, None),
    ],
)
def test_a_ci_system_names_the_builder(environment: dict[str, str], found: str | None) -> None:
    assert attestation.identify_builder({"PATH": "/bin", **environment}) == found
