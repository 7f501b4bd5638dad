"""The matrix of groups over targets: what each target changes, what is shared, partial success."""

from pathlib import Path

import onnx
import pytest

from epctx import api
from epctx.engine.report import BuildReport
from epctx.errors import CompileError
from epctx.graph import epcontext
from tests.kit import projects
from tests.kit.command_line import epctx
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")


def ran(report: BuildReport, action: str) -> list[str]:
    """`group@target subject` of each action of this kind that was carried out."""
    return sorted(
        f"{group.group}@{group.target} {each.subject}"
        for group in report.groups
        for each in group.actions
        if each.action == action and each.ran
    )


def states(report: BuildReport) -> dict[str, str]:
    return {f"{group.group}@{group.target}": group.state for group in report.groups}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Groups g and h of one model each, for three targets that differ in h alone."""
    made = projects.make(tmp_path, {"g": ["a"], "h": ["b"]})
    made.document["targets"] = {
        "one": {},
        "two": {
            "execution_providers": {"ref": {"options": {"hardware_architecture": "other"}}},
            "exclude": ["g"],
        },
        "three": {"model_groups": {"h": {"execution_providers": []}}},
    }
    return made


@pytest.mark.parametrize("cache", [True, False])
def test_what_targets_share_is_built_once(project: Project, cache: bool) -> None:
    report = project.build(cache=cache, jobs=4)
    assert set(states(report).values()) == {"built"}
    compiled = ran(report, "compile")
    assert len(compiled) == 4
    assert len([each for each in compiled if each.startswith("g@")]) == 1
    assert len(ran(report, "optimize")) == 2
    folder = project.folder / "dist" / "m"
    same = [(folder / target / "g" / "a_ctx.onnx").read_bytes() for target in ("one", "three")]
    assert same[0] == same[1]
    assert not (project.folder / "dist" / "m.staging").exists()
    if not cache:
        assert ran(project.build(cache=False), "compile")


def test_a_target_changes_providers_and_groups_at_any_depth(project: Project) -> None:
    project.build()
    folder = project.folder / "dist" / "m"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*")) == [
        *("one/g", "one/h", "three/g", "three/h", "two/h"),
    ]

    def architecture(target: str) -> list[str | None]:
        model = onnx.load(folder / target / "h" / "b_ctx.onnx")
        nodes = [node for node in model.graph.node if epcontext.is_epcontext(node)]
        found = [epcontext.EPContextNode.from_proto(node) for node in nodes]
        return [node.hardware_architecture for node in found]

    assert architecture("two") == ["other"]
    assert architecture("one") not in ([], ["other"])
    assert architecture("three") == []  # plain ONNX, for the default EP
    assert api.verify(folder, manifest=project.manifest).passed


def test_only_a_group_of_a_target(project: Project) -> None:
    assert states(project.build(only=["h@two"])) == {"h@two": "built"}
    assert states(project.build(only=["g", "h@two"])) == {
        "g@one": "built",
        "h@two": "up to date",
        "g@three": "built",
    }
    assert not project.lock.exists()


def broken_for_one(project: Project) -> None:
    partition = {"exclude": {"op_types": ["MatMul"]}, "require_coverage": 0.9}
    project.section("targets", "one")["model_groups"] = {"h": {"partition": partition}}


def test_keep_going_publishes_every_other_group_of_every_target(project: Project) -> None:
    broken_for_one(project)
    project.write()
    ended = epctx("build", "m.yaml", "--keep-going", cwd=project.folder)
    assert ended.returncode == CompileError.exit_code
    folder = project.folder / "dist" / "m"
    assert sorted(p.relative_to(folder).as_posix() for p in folder.glob("*/*")) == [
        *("one/g", "three/g", "three/h", "two/h"),
    ]
    table = [line.split() for line in ended.stdout.splitlines()]
    assert table[0] == ["target", "g", "h"]
    assert [row for row in table if row and row[0] in ("one", "two", "three")] == [
        ["one", "built", "failed"],
        ["two", "-", "built"],
        ["three", "built", "built"],
    ]
    assert "h@one" in ended.stderr and "coverage" in ended.stderr
    assert not project.lock.exists()
