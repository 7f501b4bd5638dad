"""Publication of groups, and what the report says of their settings."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx.cache import Cache, locate
from epctx.cache.digests import FreshDigests
from epctx.engine import plan, publish
from epctx.engine.events import Event
from epctx.engine.executor import Cancelled
from epctx.engine.lookup import Lookup
from epctx.engine.output.place import OutputPaths
from epctx.engine.progress import Events, GroupProgress
from epctx.engine.report import GroupReport
from epctx.engine.staleness import look
from epctx.engine.state import GroupState
from epctx.errors import CompileError, LogTail
from epctx.parsing import load
from epctx.verification.findings import FolderReport
from tests.kit.projects import Project, make, stats


class Publishing:
    """A group that was built, and staged once more; `publish` swaps it in or does not."""

    def __init__(self, project: Project) -> None:
        self.report = project.build().groups[0]
        self.cache = Cache(locate(), pytest.fail)
        self.place = OutputPaths(out=project.folder / "dist", name="m")
        self.folder = self.place.group("default", "g")
        self.told: list[Event] = []
        (planned,) = plan.read(project.manifest).groups
        lookup = Lookup(self.cache, self.cache.digests, numbers=True)
        self.state = look(planned, lookup, self.place)
        self.progress = GroupProgress(planned, Events(self.told.append))
        self.staged = self.place.staged("default", "g")
        shutil.copytree(self.folder, self.staged)

    def publish(self, state: GroupState, *, wanted: bool = True) -> GroupReport:
        return publish.group(state, self.place, self.cache, wanted=wanted)

    def states(self) -> list[str]:
        return [event.state for event in self.told]


@pytest.fixture
def publishing(project: Project) -> Publishing:
    return Publishing(project)


def test_what_failed_is_told_as_far_as_it_got(publishing: Publishing) -> None:
    """The session group that failed is not compiled: its models are those that it told of."""
    sessions = [replace(session, compile=None) for session in publishing.state.sessions]
    *_, model = publishing.publish(publishing.state).models
    failure = CompileError("crashed", remedy="see its log")
    failure.log = LogTail(file=str(publishing.place.logs / "a-0.log"), lines=("SDK: no",))
    publishing.progress.saw([replace(model, coverage=0.5, placement=None)])
    publishing.progress.found = FolderReport(folder="", models=("a_ctx.onnx",))
    found = publishing.publish(
        replace(
            publishing.state,
            sessions=tuple(sessions),
            progress=publishing.progress,
            failure=failure,
        )
    )
    assert [(each.name, each.coverage) for each in found.models] == [("b", 0.5)]
    assert found.verify == publishing.progress.found
    assert found.log == LogTail(file="m.logs/a-0.log", lines=("SDK: no",))


@pytest.mark.parametrize("why", ["another group failed", "cancelled"])
def test_a_group_that_is_not_wanted_is_skipped(why: str, publishing: Publishing) -> None:
    before = stats(publishing.folder)
    state = replace(publishing.state, progress=publishing.progress, published="old")
    if why == "cancelled":
        state = replace(state, failure=Cancelled("another group failed", remedy="see its error"))
    found = publishing.publish(state, wanted=why == "cancelled")
    assert (found.state, found.failure, found.folder) == ("skipped", None, None)
    assert publishing.states() == ["skipped"]
    assert stats(publishing.folder) == before


LOOKUP = Lookup(None, FreshDigests(), numbers=True)


def test_an_ep_that_is_not_installed_has_no_toolchain(tmp_path: Path) -> None:
    project = make(tmp_path, {"g": ["a"]})
    project.section("execution_providers")["ref"] = {
        "provider": "StrangeExecutionProvider",
        "allow_unknown_options": True,
        "options": {"x": "1"},
    }
    project.write()
    manifest = load.load(project.manifest)
    report = GroupReport(target="default", group="g", state="failed")
    (found,) = publish.described([report], manifest, LOOKUP, None)
    (ep,) = found.execution_providers
    assert (ep.options, ep.toolchain) == ({"x": "1"}, {})
