"""Context of a build, and the report of a build that has nothing to do."""

from __future__ import annotations

import json

from epctx.cache import Cache, locate
from epctx.engine import plan
from epctx.engine.build import BuildContext
from epctx.engine.events import Event
from epctx.engine.executor import Machines
from epctx.engine.options import BuildOptions
from epctx.worker.pool import Pool
from tests.kit.projects import Project


def building(project: Project, heard: list[Event]) -> BuildContext:
    options = BuildOptions(out=project.folder / "dist")
    cache = Cache(locate(), lambda text: None)
    return BuildContext(plan.read(project.manifest), options, Machines(Pool), cache, heard.append)


def test_what_is_waited_for_is_told_once(project: Project) -> None:
    heard: list[Event] = []
    wait = building(project, heard).once("another command uses the output")
    wait()
    wait()
    assert [(event.state, event.detail) for event in heard] == [
        ("waiting", "another command uses the output")
    ]


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
