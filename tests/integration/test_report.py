"""`epctx report` after real builds, as a user calls it."""

import json
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner, Result

from epctx import api
from epctx.cli.app import app
from epctx.commands.report import sections
from tests.kit import real_models
from tests.kit.projects import Project, make


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A group of two models that share one context, with a node left to the default EP."""
    made = make(tmp_path_factory.mktemp("report"), {"pair": ["a", "b"]})
    for name in "ab":
        made.section("models", name)["path"] = "a.onnx"
    made.section("model_groups", "pair")["partition"] = {"exclude": {"nodes": ["relu1"]}}
    made.build()
    return made


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["report", *map(str, arguments)])


def test_the_page_of_a_manifest(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    result = call("m.yaml")
    assert result.exit_code == 0, result.output
    assert result.stdout == "dist/m.report.html\n"
    text = Path("dist/m.report.html").read_text(encoding="utf-8")
    assert "excluded by manifest: node name &#34;relu1&#34;" in text
    assert str(project.folder) not in text, "a path of the builder"


def test_the_page_of_a_report_elsewhere(project: Project, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = call(project.folder / "dist" / "m.build.json", "--out", page, "--format", "json")
    assert json.loads(result.stdout) == {"page": page.as_posix(), "size": page.stat().st_size}


def test_what_sharing_saved_is_that_of_the_binary(project: Project) -> None:
    report = project.build()
    (row,) = sections.contexts(report, project.folder / "dist")
    assert row.models == ("a", "b") and row.file.name == "a_reference.bin"
    info = row.binary.info if row.binary else None
    assert info is not None and info.stored is not None
    assert row.saved == info.stored and row.separate == 2 * info.stored
    assert sections.saved_bytes((row,)) == row.saved


def test_a_report_without_its_files_says_that_they_were_not_read(
    project: Project, tmp_path: Path
) -> None:
    path = tmp_path / "m.build.json"
    path.write_bytes((project.folder / "dist" / "m.build.json").read_bytes())
    page = api.report(path)
    assert "not beside the report, so not read" in page.read_text(encoding="utf-8")


def test_a_binary_that_was_changed_since_is_not_read(project: Project, tmp_path: Path) -> None:
    report = project.build()
    group = report.groups[0]
    assert group.folder is not None
    folder = tmp_path / group.folder
    folder.mkdir(parents=True)
    (name,) = (file.name for file in group.files if file.name.endswith(".bin"))
    (folder / name).write_bytes(b"another")
    (row,) = sections.contexts(report, tmp_path)
    assert row.binary is None and row.saved is None


def test_a_manifest_that_was_not_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = make(tmp_path, {"g": ["a"]})
    monkeypatch.chdir(made.folder)
    result = call("m.yaml")
    assert result.exit_code == 2
    assert "dist/m.build.json does not exist" in result.stderr
    assert "epctx build m.yaml" in result.stderr


def test_the_outline_of_a_real_model_is_whole(project: Project) -> None:
    (group,) = project.build().groups
    for model in group.models:
        outline = model.outline
        assert outline is not None and len(outline.names) == model.nodes
        taken = [outline.owners.count(place) for place in range(len(model.partitions))]
        assert taken == [part.nodes for part in model.partitions]
        left = [n for n, o in zip(outline.names, outline.owners, strict=True) if o < 0]
        assert left == ["relu1"] == [each.node for each in model.declined]


@pytest.mark.needs_device("QNNExecutionProvider", "OpenVINOExecutionProvider")
def test_what_real_eps_took_and_left_is_in_the_outline(tmp_path: Path) -> None:
    """QNN takes the model whole, leaves Sinh in the middle, and says so only when it compiles."""
    made = make(tmp_path, {"alone": ["m"], "both": ["m"]})
    onnx.save(real_models.mlp(layers=3, width=16, middle="Sinh"), tmp_path / "m.onnx")
    made.section("execution_providers").update(
        npu={"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}},
        vino={"provider": "OpenVINOExecutionProvider"},
    )
    made.section("model_groups", "alone")["execution_providers"] = ["npu"]
    made.section("model_groups", "both")["execution_providers"] = ["npu", "vino"]
    report = made.build(verify=False)
    alone, both = (group.models[0] for group in report.groups)
    assert alone.outline is not None and both.outline is not None
    assert (
        alone.outline.names
        == both.outline.names
        == tuple(f"{kind}{layer}" for layer in range(3) for kind in ("mm", "act"))
    )
    assert alone.outline.owners == (0, 0, 0, -1, 1, 1)
    assert both.outline.owners == (0, 0, 0, 2, 1, 1)
    assert [part.provider for part in both.partitions] == ["npu", "npu", "vino"]
    page = api.report(made.manifest, dist=tmp_path / "dist").read_text(encoding="utf-8")
    assert "Operators of type `Sinh` are not supported by QNN EP" in page
    assert "QNN context binary" in page


def test_two_builds_of_one_manifest(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project.folder)
    api.build("m.yaml", out="old")
    text = Path("m.yaml").read_text(encoding="utf-8")
    Path("n.yaml").write_text(text.replace("relu1", "relu0"), encoding="utf-8")
    api.build("n.yaml", out="new")
    result = CliRunner().invoke(app, ["diff", "old/m.build.json", "new", "--html", "page.html"])
    assert result.exit_code == 0, result.output
    page = Path("page.html").read_text(encoding="utf-8")
    assert "partition.exclude.nodes[0]: &#34;relu1&#34; is now &#34;relu0&#34;" in page
    assert "1 of 1 group differs" in page and "default/pair/a_reference.bin" in page
    assert str(project.folder) not in page
    lock = CliRunner().invoke(app, ["diff", "old", "m.lock.yaml", "--html", "none.html"])
    assert lock.exit_code == 2 and "has no build report" in lock.output
    assert not Path("none.html").exists()
