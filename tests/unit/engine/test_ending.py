"""The report of a build that has nothing to do: it stays, or says what is new in the manifest."""

from __future__ import annotations

import json

from tests.kit.projects import Project


def test_a_key_that_enters_no_action_reaches_the_report(project: Project) -> None:
    file = project.folder / "dist" / "m.build.json"
    project.build()
    before = file.read_bytes()
    project.build()
    assert file.read_bytes() == before, "it tells of the build that made what is there"
    project.section("model_groups", "g")["timeout"] = "77m"
    assert [group.state for group in project.build().groups] == ["up to date"]
    (group,) = json.loads(file.read_bytes())["groups"]
    assert (group["manifest"]["model_groups"]["g"]["timeout"], group["state"]) == (
        "77m",
        "up to date",
    )
    after = file.read_bytes()
    project.build()
    assert file.read_bytes() == after
