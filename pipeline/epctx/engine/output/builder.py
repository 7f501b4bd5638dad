"""Who builds: `builder.id` of an attestation, a URI, as the CI system tells it.

An attestation says whom to trust, and the tool is not that: its maintainers do not run the build.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

UNIDENTIFIED: Final = "urn:epctx:unidentified-builder"
"""SLSA's provenance v1 requires an id. BuildKit leaves it empty where nobody gave one, npm refuses
to write any provenance; this says what is true, and no policy that names a builder accepts it."""
_SYSTEMS: Final = (
    # The workflow, as GitHub's own attestations have it.
    "{GITHUB_SERVER_URL}/{GITHUB_WORKFLOW_REF}",
    # The runner, as GitLab's own provenance has it.
    "{CI_PROJECT_URL}/-/runners/{CI_RUNNER_ID}",
    "{SYSTEM_COLLECTIONURI}{SYSTEM_TEAMPROJECTID}/_build?definitionId={SYSTEM_DEFINITIONID}",
    "{JENKINS_URL}job/{JOB_NAME}",
)


def identify(environment: Mapping[str, str]) -> str | None:
    """The builder that the variables of a CI system tell: GitHub, GitLab, Azure, Jenkins.

    None: they tell none.
    """
    for template in _SYSTEMS:
        try:
            found = template.format_map({name: text for name, text in environment.items() if text})
        except KeyError:
            continue
        if found.startswith(("https://", "http://")):
            return found
    return None
