"""Files and folders that are given where a manifest belongs: what they are, and what to do."""

from pathlib import Path

import pytest

from epctx.parsing import document
from epctx.parsing.document import reader


def parsed(text: str, path: Path) -> document.Document:
    return document.parse(text.encode(), file=path.name, path=path)


def test_a_manifest_is_nothing_else(tmp_path: Path) -> None:
    root = parsed("{schema_version: 1, name: a, models: {}, model_groups: {}}", tmp_path).root
    assert reader.refuse_content(root, tmp_path) is None


def test_a_lock_names_the_manifest_beside_it_if_there_is_one(tmp_path: Path) -> None:
    lock = tmp_path / "a.lock.yaml"
    root = parsed("lock_version: 1", lock).root
    what, remedy = reader.refuse_content(root, lock) or ("", "")
    assert what == "is a lock, not a manifest"
    assert remedy.startswith("name its manifest; ")
    (tmp_path / "a.yaml").touch()
    _, remedy = reader.refuse_content(root, lock) or ("", "")
    assert remedy.startswith(f"name the manifest: {(tmp_path / 'a.yaml').as_posix()}; ")


def test_a_configuration_of_genai_is_for_init(tmp_path: Path) -> None:
    path = tmp_path / "genai_config.json"
    root = parsed('{"model": {}, "search": {}}', path).root
    told = "is a configuration of onnxruntime-genai, not a manifest"
    remedy = f"write a manifest for its folder: `epctx init {tmp_path.as_posix()}`"
    assert reader.refuse_content(root, path) == (told, remedy)


@pytest.mark.parametrize(
    ("holds", "what", "command"),
    [
        ("manifest.json", "is a package, not a manifest", "epctx verify"),
        ("SHA256SUMS", "is the folder of a model group's outputs, not a manifest", "epctx verify"),
        ("a.build.json", "is a folder of outputs, not a manifest", "epctx report"),
        ("genai_config.json", "is a folder of onnxruntime-genai", "epctx init"),
    ],
)
def test_a_folder_is_told_by_what_it_holds(
    tmp_path: Path, holds: str, what: str, command: str
) -> None:
    (tmp_path / holds).touch()
    told, remedy = reader.refuse_folder(tmp_path)
    assert told == what
    assert f"`{command} {tmp_path.as_posix()}`" in remedy


def test_of_another_folder_the_files_that_may_be_manifests_are_named(tmp_path: Path) -> None:
    assert reader.refuse_folder(tmp_path) == ("is a folder", "name a YAML file")
    for name in ("a.yaml", "a.lock.yaml"):
        (tmp_path / name).touch()
    remedy = f"name a file: {(tmp_path / 'a.yaml').as_posix()}"
    assert reader.refuse_folder(tmp_path) == ("is a folder", remedy)


@pytest.mark.parametrize(
    ("name", "what", "command"),
    [
        ("a.onnx", "is a model, not a manifest", "epctx init a.onnx"),
        ("a_ctx.onnx", "is a compiled model, not a manifest", "epctx inspect a_ctx.onnx"),
    ],
)
def test_a_model_is_told_by_its_name(name: str, what: str, command: str) -> None:
    told, remedy = reader.refuse_model(Path(name))
    assert told == what
    assert f"`{command}`" in remedy
