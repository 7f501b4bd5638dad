"""Session groups in pieces: what is carried out, what is spared, and where an error is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx import api
from epctx.actions.pieces import CutResult
from epctx.engine.actions import numbers
from epctx.errors import CompileError, ManifestError, ModelError
from tests.kit.projects import Project, make, ran, steady


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    steady(monkeypatch)
    return make(tmp_path / "p", {"one": ["a"]}, partition={"pieces": {"count": 3}})


def edit(project: Project, name: str) -> None:
    """Change a weight of the model."""
    path = project.folder / "a.onnx"
    model = onnx.load(path)
    (tensor,) = (each for each in model.graph.initializer if each.name == name)
    tensor.CopyFrom(numpy_helper.from_array(np.copy(numpy_helper.to_array(tensor)) * 2, name))
    onnx.save(model, path)


def test_each_piece_is_an_action(project: Project) -> None:
    report = project.build()
    assert ran(report) == [
        ("assemble", "a"),
        *(("compile", f"a.{number}") for number in (1, 2, 3)),
        ("cut", "a"),
        ("optimize", "a"),
        ("verify", "one"),
    ]
    stages = [(each.stage, each.subject) for each in report.groups[0].stages]
    assert stages.index(("source", "a")) < stages.index(("compile", "a.1"))
    assert ran(project.build()) == []
    plan = api.plan(project.manifest, out=project.folder / "dist").groups[0]
    assert [(each.action, each.subject) for each in plan.actions] == [
        ("optimize", "a"),
        ("cut", "a"),
        *(("compile", f"a.{number}") for number in (1, 2, 3)),
        ("assemble", "a"),
        ("verify", "one"),
    ]


def test_an_edited_weight_compiles_its_piece(project: Project) -> None:
    project.build()
    names = [each.name for each in onnx.load(project.folder / "a.onnx").graph.initializer]
    edit(project, names[-1])
    compiled = [subject for action, subject in ran(project.build()) if action == "compile"]
    assert compiled == ["a.3"]


def test_what_the_cache_has_lost_is_made_again(project: Project) -> None:
    before = project.build()
    published, cache = project.files(), project.folder.parent / "cache"
    lost = [path for path in cache.glob("*/objects/**/*") if path.is_file()]
    assert lost
    for path in lost:
        path.unlink()
    (project.published / "one" / "a_ctx.onnx").unlink()
    assert ("compile", "a.2") in ran(project.build())
    assert project.files() == published
    assert before.groups[0].files == project.build().groups[0].files


@pytest.mark.parametrize(
    ("pieces", "where", "words"),
    [
        ({"count": 99}, "count: 99", "more than the model can be cut into"),
        ({"at": ["nothing"]}, "- nothing", "no node of the main graph makes it"),
    ],
)
def test_a_cut_that_cannot_be_says_where_the_manifest_asks_for_it(
    project: Project, pieces: dict[str, object], where: str, words: str
) -> None:
    project.section("defaults").pop("partition")
    project.section("model_groups", "one")["partition"] = {"pieces": pieces}
    with pytest.raises(ManifestError, match=words) as caught:
        project.build()
    line = next(
        number
        for number, text in enumerate(project.manifest.read_text().splitlines(), start=1)
        if where in text
    )
    assert (caught.value.file, caught.value.line) == ("m.yaml", line)
    (key,) = pieces
    assert (caught.value.where or "").endswith(f"model_groups.one.partition.pieces.{key}")
    assert not project.published.exists()


def test_a_source_that_does_not_run_is_told_before_anything_is_compiled(project: Project) -> None:
    def shrink(model: onnx.ModelProto) -> None:
        model.graph.node.insert(
            0, onnx.helper.make_node("Reshape", [model.graph.input[0].name, "to"], ["never"])
        )
        model.graph.initializer.append(numpy_helper.from_array(np.array([7]), "to"))
        model.graph.output.append(onnx.helper.make_tensor_value_info("never", 1, [7]))

    project.edit("a", shrink)
    with pytest.raises((ModelError, CompileError)) as caught:
        project.build()
    assert isinstance(caught.value, ModelError)
    report = (project.folder / "dist" / "m.build.json").read_text()
    assert '"stage": "compile"' not in report


def test_a_lock_says_where_to_cut(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    from epctx.graph.partition import pieces

    project.build()
    assert ran(project.build(locked=True)) == []
    published = project.files()
    lock = project.lock.read_text()
    assert "asked_pieces:" in lock and "at:" in lock
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(project.folder / "other"))
    monkeypatch.setattr(pieces, "SLACK", 1)
    project.build(locked=True)
    assert project.files() == published


def test_a_whole_that_takes_more_memory_than_a_piece_is_not_loaded(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = project.build(cache=False).groups[0].verify
    assert verify is not None
    assert {each.sessions for each in verify.numbers} == {"pieces", "chain", "files"}
    monkeypatch.setattr(numbers, "_BASE", 0)
    verify = project.build(cache=False).groups[0].verify
    assert verify is not None and verify.unrun is None
    assert {each.sessions for each in verify.numbers} == {"pieces", "chain"}
    (found,) = (each for each in verify.findings if each.check == "end_to_end")
    assert found.outcome == "not checkable" and "not checked end to end" in found.message


def test_a_worker_that_tells_of_other_cuts_is_not_believed(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CutResult, "is_of", lambda self, models: False)
    with pytest.raises(CompileError, match="other cuts than requested"):
        project.build()
    assert not project.published.exists()
