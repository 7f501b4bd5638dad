"""`epctx plan`: what would run and why; and nothing is done."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from typer.testing import CliRunner

from epctx import api
from epctx.cache import locate
from epctx.cli.app import app
from epctx.engine.staleness import GroupPlan
from epctx.errors import ModelError
from tests.kit import projects
from tests.kit.projects import Project, flip, stats, steady


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("plan")
    projects.built(folder)
    return folder


@pytest.fixture
def project(built: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """The same project at the same place, put back as it was."""
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(built / "cache"))
    steady(monkeypatch)
    kept = built / "kept"
    if not kept.exists():
        shutil.copytree(built / "project", kept / "project")
        shutil.copytree(built / "cache", kept / "cache")
    for name in ("project", "cache"):
        shutil.rmtree(built / name)
        shutil.copytree(kept / name, built / name)
    document = projects.document(projects.TWO_GROUPS)
    return Project(folder=built / "project", document=document)


def plan(project: Project, **options: Any) -> dict[str, GroupPlan]:
    project.write()
    found = api.plan(project.manifest, out=project.folder / "dist", **options)
    return {group.group: group for group in found.groups}


def running(group: GroupPlan) -> dict[str, str]:
    return {
        f"{each.action} {each.subject}": each.state
        for each in group.actions
        if each.state != "up to date"
    }


def test_what_is_built_is_up_to_date(project: Project) -> None:
    groups = plan(project)
    assert {name: group.state for name, group in groups.items()} == {
        "one": "up to date",
        "two": "up to date",
    }
    assert groups["two"].because == ()
    assert [(a.action, a.subject) for a in groups["two"].actions] == [
        ("optimize", "b"),
        ("optimize", "c"),
        ("compile", "all"),
        ("verify", "two"),
    ]
    assert all(a.key is not None for a in groups["two"].actions)


def test_a_plan_does_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("epctx.worker.process.Worker", None)
    flip(project.folder / "a.data")
    project.write()

    def everything() -> object:
        return stats(project.folder), stats(locate().root / "actions")

    before = everything()
    api.plan(project.manifest, out=project.folder / "dist")
    assert everything() == before


def test_what_was_never_built(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(project.folder / "none"))
    one = plan(project)["one"]
    assert one.state == "runs"
    assert one.because == (
        "a.onnx is unchanged since the lock was written, but this cache has no result",
    )
    assert running(one) == {
        "optimize a": "runs",
        "compile a": "depends",
        "verify one": "depends",
    }
    assert not (project.folder / "none" / "v2" / "actions").exists()
    project.edit("a", lambda model: model.graph.node[0].__setattr__("name", "other"))
    assert plan(project)["one"].because == ("a.onnx has changed since the lock was written",)
    project.lock.unlink()
    assert plan(project)["one"].because == ("a.onnx was never built here",)


def test_another_format_of_the_cache_is_told_until_something_is_built(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(locate().root, tmp_path / "cache" / "v1")
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    told = "the cache format is new: earlier results are not read"
    assert {group.because for group in plan(project).values()} == {(told,)}
    api.build(project.manifest, out=project.folder / "dist", only=["one@default"])
    edited = plan(project)
    assert edited["one"].state == "up to date"
    assert told not in edited["two"].because


def weights(project: Project) -> None:
    flip(project.folder / "a.data")


def model(project: Project) -> None:
    project.edit("a", lambda model: setattr(model, "doc_string", "edited"))


def dimensions(project: Project) -> None:
    project.section("models", "a")["dimensions"] = {"batch": 2}


def option(project: Project) -> None:
    project.section("execution_providers", "ref", "options")["sdk_version"] = "2.0"


def prefix(project: Project) -> None:
    project.section("model_groups", "one")["node_name_prefix"] = "p_"


def tolerance(project: Project) -> None:
    project.section("model_groups", "one", "verify", "tolerance")["max_abs"] = 0.25


COMPILES = {"compile a": "runs", "verify one": "depends"}
OPTIMIZES = {"optimize a": "runs", "compile a": "depends", "verify one": "depends"}
CHANGES: dict[Callable[[Project], None], tuple[dict[str, str], str, str]] = {
    weights: (OPTIMIZES, "a.data has changed", "data[0]"),
    model: (OPTIMIZES, "a.onnx has changed", "model"),
    dimensions: (OPTIMIZES, "dimensions.batch: 2 is new", "dimensions.batch"),
    option: (
        COMPILES,
        'execution_providers.ref.options.sdk_version: "2.0" is new',
        "providers[0].options.sdk_version",
    ),
    prefix: (COMPILES, 'node_name_prefix: "" is now "p_"', "node_name_prefix"),
    tolerance: (
        {"verify one": "runs"},
        "tolerance.max_abs: null is now 0.25",
        "tolerance.max_abs",
    ),
}


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_why_something_runs(project: Project, change: Callable[[Project], None]) -> None:
    change(project)
    one = plan(project)["one"]
    states, because, field = CHANGES[change]
    assert running(one) == states
    assert one.because == (because,)
    assert [c.field for action in one.actions for c in action.changes] == [field]


def test_a_model_that_refers_to_other_files(project: Project) -> None:
    path = project.folder / "a.onnx"
    model = onnx.load(path)
    onnx.save(model, path)
    assert plan(project)["one"].because == ("a.onnx has changed", "a.onnx refers to fewer files")
    onnx.save(
        model, path, save_as_external_data=True, all_tensors_to_one_file=False, size_threshold=0
    )
    because = plan(project)["one"].because
    assert len(because) > 2 and all(why.endswith(" has changed") for why in because)


def test_what_is_wrong_in_a_model_is_of_its_group(project: Project) -> None:
    (project.folder / "a.data").unlink()
    found = plan(project)
    assert found["one"].failure is not None and found["one"].failure.code == "E0402"
    assert found["one"].because == (f"{project.folder / 'a.data'}: does not exist",)
    assert found["two"].state == "up to date"
    (project.folder / "a.onnx").unlink()
    with pytest.raises(ModelError, match=r"a\.onnx"):
        plan(project)


def test_a_model_that_another_group_has_was_built_here(project: Project) -> None:
    groups = project.section("model_groups")
    groups["new"] = {**project.section("model_groups", "one"), "optimize": {"level": "none"}}
    assert plan(project)["new"].because == ("optimize of a: it never ran here",)


def test_another_onnxruntime(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from epctx.keys import toolchain as toolchains

    installed = toolchains.version
    monkeypatch.setattr(
        toolchains, "version", lambda name: "9.9" if name == "onnxruntime" else installed(name)
    )
    (why,) = plan(project)["two"].because
    assert why == f'toolchain.onnxruntime: "{installed("onnxruntime")}" is now "9.9"'


def test_what_is_published_is_something_else(project: Project) -> None:
    flip(project.published / "one" / "a_ctx.onnx")
    one = plan(project)["one"]
    assert (one.state, one.because) == ("publishes", ("a_ctx.onnx was changed",))
    shutil.rmtree(project.published / "one")
    assert plan(project)["one"].because == ("it is not published",)


def test_a_result_that_the_cache_has_lost(project: Project) -> None:
    shutil.rmtree(locate().root / "actions")
    (why,) = plan(project)["one"].because
    assert why == "optimize of a: its last result is not in the cache"


def test_without_numbers_it_is_another_verification(project: Project) -> None:
    assert running(plan(project, verify=False)["one"]) == {"verify one": "runs"}


def test_a_missing_source_is_an_error(project: Project) -> None:
    (project.folder / "a.onnx").unlink()
    with pytest.raises(ModelError, match="does not exist"):
        plan(project)
    assert list(plan(project, only=["two"])) == ["two"]


def told(project: Project, *options: str) -> str:
    project.write()
    arguments = ["plan", str(project.manifest), "--out", str(project.folder / "dist"), *options]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.stderr
    return result.stdout


def test_the_command_in_words(project: Project) -> None:
    assert told(project) == "one@default [ref]: up to date\ntwo@default [ref]: up to date\n"
    prefix(project)
    assert told(project, "--only", "one").splitlines() == [
        "one@default [ref]: runs",
        '├── node_name_prefix: "" is now "p_"',
        "├── optimize a: up to date",
        "├── compile a: runs",
        "└── verify one: depends on what runs before it",
    ]


def test_the_command_explains_keys(project: Project) -> None:
    prefix(project)
    lines = told(project, "--only", "one", "--explain").splitlines()
    assert lines[0] == "one@default [ref]: runs"
    assert sum("key blake3:" in line for line in lines) == 2
    assert '│   └── node_name_prefix: "" is now "p_"' in lines


def test_the_command_as_json(project: Project) -> None:
    prefix(project)
    one, two = json.loads(told(project, "--format", "json"))["groups"]
    assert (one["state"], two["state"]) == ("runs", "up to date")
    assert one["actions"][1]["changes"] == [
        {"field": "node_name_prefix", "old": '""', "new": '"p_"'}
    ]
