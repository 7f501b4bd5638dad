"""What goes into a package and where, and what `epctx verify` says of a damaged one.

Built for the default EP and the reference EP, which take no time; the reader is ONNX Runtime's own.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from epctx import api
from epctx.commands.package import checking
from epctx.commands.package.writing import PackageReport
from epctx.errors import CompileError, InvalidManifest, StorageError, UsageError
from epctx.verification.findings import FolderReport, VerifyReport
from tests.kit import package_reader, projects
from tests.kit.building import cpu, normal
from tests.kit.package_reader import Request
from tests.kit.packaged import (
    DAMAGES,
    made,
    ort,
    package,
    resum,
    tree,
    variants,
    with_extras,
)
from tests.kit.projects import Project

pytestmark = pytest.mark.usefixtures("jobs_inline")

CPU = "CPUExecutionProvider"
WEIGHTS = {"external_initializers": {"file": "{model}.data"}}
MIXED = {
    "cpu": {"model_groups": {"g": {"execution_providers": []}}},
    # The same weights, all of them the default EP's, in a model that is another.
    "mixed": {"model_groups": {"g": {"partition": {"exclude": {"op_types": ["MatMul", "Add"]}}}}},
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, PackageReport]:
    """Two groups that have a model in common, for two targets that differ in nothing."""
    project = projects.make(tmp_path_factory.mktemp("plain"), {"g": ["a", "b"], "h": ["a"]})
    project.document["targets"] = {"one": {}, "two": {}}
    project.write()
    return project, api.package(project.manifest, out=project.folder / "dist", jobs=2)


def read(project: Project) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((made(project) / "manifest.json").read_bytes())
    return found


def test_without_a_section_it_is_the_models_in_their_variants(
    plain: tuple[Project, PackageReport],
) -> None:
    project, report = plain
    manifest = read(project)
    assert list(manifest["components"]) == ["g.a", "b", "h.a"]  # two groups hold a
    variant = variants(manifest, "b")["one"]
    assert variant["ep"] == "ReferenceExecutionProvider"
    assert not any(each.native for each in report.variants)
    assert variant["variant_directory"] == "one/g"
    assert ort(manifest, "one", "b") == {
        "model_file": "b_ctx.onnx",
        "session_options": {"ep.share_ep_contexts": "1"},
    }
    assert ort(manifest, "one", "h.a") == {"model_file": "a_ctx.onnx"}
    sums = (made(project) / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    for line in sums:
        digest, path = line.split("  ")
        assert hashlib.sha256((made(project) / path).read_bytes()).hexdigest() == digest
    assert len(sums) == len(tree(made(project))) - 1
    assert api.verify(made(project)).passed


def test_targets_of_the_same_bytes_share_a_folder(plain: tuple[Project, PackageReport]) -> None:
    project, report = plain
    assert {variant.folder for variant in report.variants} == {"one/g", "one/h"}
    assert tree(made(project)) == {
        *("manifest.json", "SHA256SUMS", "one/h/a_ctx.onnx", "one/h/a_reference.bin"),
        *(f"one/g/{name}" for name in ("a_ctx.onnx", "b_ctx.onnx", "a_reference.bin")),
    }
    sizes = [path.stat().st_size for path in (made(project) / "one").rglob("*.*")]
    assert report.saved == sum(sizes)


def test_it_says_what_it_was_made_from(plain: tuple[Project, PackageReport]) -> None:
    project, _ = plain
    manifest = read(project)
    whole = manifest["additional_metadata"]["epctx"]
    assert whole["manifest"] == "m"
    assert whole["sources"].keys() == {"a.onnx", "a.data", "b.onnx", "b.data"}
    assert whole["toolchain"]["epctx"]
    assert "ReferenceExecutionProvider" in whole["execution_providers"]
    own = variants(manifest, "h.a")["two"]["additional_metadata"]["epctx"]
    assert (own["target"], own["group"]) == ("two", "h")
    assert own["models"]["a"]["source"] == "a.onnx"
    assert len(own["keys"]) == 1
    assert str(project.folder) not in json.dumps(manifest)


def test_a_group_without_an_ep_is_a_variant_that_the_reader_selects_for_the_cpu(
    tmp_path: Path,
) -> None:
    targets: dict[str, Any] = {
        "npu": {},
        "cpu": {"model_groups": {"g": {"execution_providers": []}}},
    }
    project = projects.make(tmp_path, {"g": ["a"]})
    project.document["targets"] = targets
    manifest = package(project)
    assert variants(manifest)["cpu"].keys() == {
        *("variant_directory", "ep", "executor_info", "additional_metadata")
    }
    x = normal((1, 32))
    answer, outputs = package_reader.run(made(project), "", "a", {"x": x}, scratch=tmp_path / "r")
    assert (answer.error, answer.selected) == ("", "cpu")
    (right,) = cpu(tmp_path / "a.onnx").run(None, {"x": x})
    assert np.array_equal(outputs["y"], right)


def test_weights_that_variants_share_are_stored_once_and_found_by_the_reader(
    tmp_path: Path,
) -> None:
    project = projects.make(tmp_path, {"g": ["a"]}, **WEIGHTS)
    project.document["targets"] = MIXED
    manifest = package(project)
    folders = {option(manifest, target) for target in ("cpu", "mixed")}
    (uri,) = folders
    asset = uri.replace(":", "-")
    assert tree(made(project)) == {
        *("manifest.json", "SHA256SUMS", f"shared_assets/{asset}/a.data"),
        *("cpu/g/a_ctx.onnx", "mixed/g/a_ctx.onnx", "mixed/g/a_reference.bin"),
    }
    x = normal((1, 32))
    answer, outputs = package_reader.run(made(project), "", "a", {"x": x}, scratch=tmp_path / "r")
    assert (answer.error, answer.selected) == ("", "cpu")
    (right,) = cpu(tmp_path / "a.onnx").run(None, {"x": x})
    assert np.array_equal(outputs["y"], right)
    report = api.verify(made(project), manifest=project.manifest, lock=project.lock)
    assert report.passed
    assert {n.sessions for f in report.folders for n in f.numbers} == {"files"}
    held = {f.subject for f in report.findings("pass") if f.check == "lock"}
    assert held == tree(made(project))


def option(manifest: dict[str, Any], target: str) -> str:
    options: dict[str, str] = ort(manifest, target)["session_options"]
    return options["session.model_external_initializers_file_folder_path"]


def test_assets_are_stored_once_and_files_are_beside_the_models(sound: Path) -> None:
    source = sound.parent.parent / "tok"
    manifest = json.loads((sound / "manifest.json").read_bytes())
    uri = manifest["additional_metadata"]["epctx"]["assets"]["tokenizer"]
    text = "".join(
        f"{hashlib.sha256((source / name).read_bytes()).hexdigest()}  {name}\n"
        for name in ("merges/a.txt", "tokenizer.json")
    )
    assert uri == f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"
    asset = f"shared_assets/{uri.replace(':', '-')}"
    assert {f"{asset}/tokenizer.json", f"{asset}/merges/a.txt"} <= tree(sound)
    for target in ("one", "two"):
        told = (sound / target / "g" / "readme.txt").read_text(encoding="utf-8")
        assert told == f"for {target}"
    assert api.verify(sound).passed


def test_a_package_for_genai_has_one_component_and_its_configuration_finds_the_tokenizer(
    tmp_path: Path,
) -> None:
    project = projects.make(tmp_path, {"g": ["a", "b"], "h": ["c"]})
    (tmp_path / "tok").mkdir()
    (tmp_path / "tok" / "tokenizer.json").write_text("{}", encoding="utf-8")
    config = {"model": {"type": "llama", "decoder": {"filename": "a_ctx.onnx"}}, "search": {}}
    (tmp_path / "genai.json").write_text(json.dumps(config), encoding="utf-8")
    project.document["package"] = {
        "groups": ["g"],
        "assets": {"tokenizer": "tok"},
        "files": {"genai_config.json": "genai.json"},
        "genai": {"tokenizer": "tokenizer"},
    }
    manifest = package(project)
    assert list(manifest["components"]) == ["model"]
    (variant,) = variants(manifest, "model").values()
    assert "executor_info" not in variant
    folder = made(project) / variant["variant_directory"]
    told = json.loads((folder / "genai_config.json").read_bytes())
    uri = manifest["additional_metadata"]["epctx"]["assets"]["tokenizer"]
    config["model"]["tokenizer_dir"] = uri
    assert told == config
    assert (folder / "b_ctx.onnx").is_file()
    report = api.verify(made(project))
    assert report.passed
    assert [f.outcome for f in report.findings() if f.check == "genai"] == ["pass"]


def test_a_variant_for_genai_has_all_that_its_models_need(tmp_path: Path) -> None:
    """It opens the folder alone, and finds no data that lies elsewhere in the package."""
    project = projects.make(tmp_path, {"g": ["a"]}, **WEIGHTS)
    project.document["targets"] = MIXED
    (tmp_path / "genai.json").write_text('{"model": {}}', encoding="utf-8")
    project.document["package"] = {"files": {"genai_config.json": "genai.json"}, "genai": {}}
    package(project)
    assert {"cpu/g/a.data", "mixed/g/a.data"} <= tree(made(project))
    assert api.verify(made(project), lock=project.lock).passed


def test_a_build_that_fails_leaves_the_package_that_was_there(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"g": ["a"]})
    package(project)
    before = {name: (made(project) / name).read_bytes() for name in tree(made(project))}
    project.section("defaults")["partition"] = {
        "exclude": {"op_types": ["MatMul"]},
        "require_coverage": 0.9,
    }
    with pytest.raises(CompileError):
        package(project)
    assert {name: (made(project) / name).read_bytes() for name in tree(made(project))} == before


def test_what_did_not_change_is_not_written_again(tmp_path: Path) -> None:
    project = with_extras(tmp_path)
    package(project)
    inode = made(project).stat().st_ino
    again = api.package(project.manifest, out=project.folder / "dist")
    assert (again.state, made(project).stat().st_ino) == ("up to date", inode)
    (tmp_path / "one.txt").write_text("for another", encoding="utf-8")
    assert api.package(project.manifest, out=project.folder / "dist").state == "written"
    (made(project) / "one" / "g" / "readme.txt").write_text("edited", encoding="utf-8")
    assert api.package(project.manifest, out=project.folder / "dist").state == "written"
    assert api.verify(made(project)).passed


def test_an_output_that_changes_meanwhile_is_not_packaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from epctx.files import items
    from epctx.files.items import Item

    project = with_extras(tmp_path)
    found = items.found

    def changing(path: Path) -> Item:
        item = found(path)
        path.write_text("another", encoding="utf-8")
        return item

    monkeypatch.setattr(items, "found", changing)
    with pytest.raises(StorageError, match="changed while it was packaged"):
        package(project)
    assert not made(project).exists()
    assert not (project.folder / "dist" / "m.staging").exists()


def test_what_the_section_names_must_be_there(tmp_path: Path) -> None:
    project = with_extras(tmp_path)
    (tmp_path / "two.txt").unlink()
    with pytest.raises(InvalidManifest, match=r'"two.txt" does not exist \(for g@two\)'):
        package(project)


def test_what_is_needed_is_not_where_the_package_goes(tmp_path: Path) -> None:
    project = with_extras(tmp_path)
    package(project)
    inside = made(project) / "one" / "g" / "readme.txt"
    project.section("package")["files"] = {"readme.txt": inside.relative_to(tmp_path).as_posix()}
    with pytest.raises(UsageError, match="lies in the folder that the package replaces"):
        package(project)
    assert inside.is_file()


def test_a_folder_that_is_no_package_is_not_replaced(tmp_path: Path) -> None:
    project = projects.make(tmp_path, {"g": ["a"]})
    made(project).mkdir(parents=True)
    (made(project) / "letters.txt").write_text("dear", encoding="utf-8")
    with pytest.raises(UsageError, match="is not a model package"):
        package(project)
    assert tree(made(project)) == {"letters.txt"}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    project = with_extras(tmp_path_factory.mktemp("sound"))
    package(project)
    return made(project)


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.needs("links")] if n == "link" else []) for n in DAMAGES],
)
def test_damage_is_found_and_named(name: str, sound: Path, tmp_path: Path) -> None:
    damage, check, words = DAMAGES[name]
    folder = shutil.copytree(sound, tmp_path / "p")
    damage(folder)
    # What a worker looks at takes a second; the rest needs none.
    models = check.startswith("compatibility")
    found = api.verify(folder) if models else VerifyReport(folders=(looked_at(folder),))
    faults = [f for f in found.findings("fail") if f"{f.policy}/{f.check}" == check]
    assert any(words in fault.message for fault in faults), told(found)
    assert all(fault.remedy for fault in faults)


def looked_at(folder: Path) -> FolderReport:
    return checking.check(folder, "p").report


def told(report: VerifyReport) -> list[str]:
    return [f"{f.policy}/{f.check} {f.subject}: {f.message}" for f in report.findings("fail")]


def test_a_variant_that_is_never_selected_is_told(sound: Path, tmp_path: Path) -> None:
    report = api.verify(sound)
    (never,) = (f for f in report.findings("not checkable") if "never selected" in f.message)
    assert never.subject == "a/two"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("forbidden", "session.enable_profiling"),
        ("no folder", "three/g"),
        ("list", "components"),
        ("version", "schema_version major 2 is not supported"),
        ("unknown key", "variant_dir"),
        ("number", "session_options"),
    ],
)
def test_the_reader_refuses_what_it_does_check(
    name: str, message: str, sound: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(sound, tmp_path / "p")
    DAMAGES[name][0](folder)
    answer = package_reader.ask(
        Request(package=str(folder), provider="", component="a"), scratch=tmp_path
    )
    assert message in answer.error


def test_packages_below_a_folder_are_found_beside_groups(sound: Path) -> None:
    report = api.verify(sound.parent)
    names = [Path(folder.folder).as_posix() for folder in report.folders]
    assert [name.rpartition("dist/")[2] for name in names[:-1]] == [
        *("m.ortpackage", "m/one/g", "m/two/g", "m.ortpackage/one/g", "m.ortpackage/two/g"),
    ]
    assert {f.outcome for f in report.folders[-1].findings} == {"not covered"}


def test_models_of_a_package_have_no_other_data_than_they_say(tmp_path: Path) -> None:
    """The closure of a model whose weights are an asset: the file must be in that asset."""
    project = projects.make(tmp_path, {"g": ["a"]}, **WEIGHTS)
    project.document["targets"] = MIXED
    package(project)
    model = onnx.load(made(project) / "cpu/g/a_ctx.onnx", load_external_data=False)
    for entry in (e for t in model.graph.initializer for e in t.external_data):
        if entry.key == "location":
            entry.value = "other.data"
    (made(project) / "cpu/g/a_ctx.onnx").write_bytes(model.SerializeToString())
    resum(made(project))
    report = api.verify(made(project))
    faults = [f.message for f in report.findings("fail")]
    assert "its external data 'other.data': it does not exist" in faults, told(report)
