"""The surroundings of a build: what it knows of a group, what it tells once."""

from __future__ import annotations

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
