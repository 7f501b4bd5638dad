"""Files that are read as a manifest, and those that are something else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from epctx import limits
from epctx.errors import InvalidManifest, ManifestError
from epctx.parsing import document
from epctx.parsing.document import reader


def test_a_document_knows_its_file_as_named_and_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "m.yaml").write_text("a: 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    read = document.read(Path("m.yaml"))
    assert (read.file, read.path) == ("m.yaml", tmp_path / "m.yaml")
    assert read.root.plain() == {"a": 1}


def test_a_byte_order_mark_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\r\n")
    root = document.read(path).root
    assert root.plain() == {"a": 1, "b": 2}
    assert root.keys["a"].column == 1


@pytest.mark.parametrize(("name", "told"), [(".", "is a folder"), ("a\x00b", "cannot be read")])
def test_what_is_no_file_is_a_manifest_error(tmp_path: Path, name: str, told: str) -> None:
    with pytest.raises(ManifestError, match=told):
        document.read(tmp_path / name)


def test_a_binary_file_is_no_text_whatever_its_first_odd_byte_is(tmp_path: Path) -> None:
    (tmp_path / "m.bin").write_bytes(b"EPCT\0\xff")
    with pytest.raises(InvalidManifest, match="is not a text file"):
        document.read(tmp_path / "m.bin")


def test_a_model_in_place_of_a_manifest_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x08\xff")
    with pytest.raises(ManifestError, match="is a model, not a manifest") as caught:
        document.read(tmp_path / "m.onnx")
    assert f"epctx init {(tmp_path / 'm.onnx').as_posix()}" in caught.value.remedy


def test_text_that_is_not_utf8_is_told_where(tmp_path: Path) -> None:
    with pytest.raises(InvalidManifest) as caught:
        document.parse(b"a: 1\nb: caf\xe9\n", file="m.yaml", path=tmp_path)
    (violation,) = caught.value.violations
    assert (violation.line, violation.column, violation.what) == (2, 7, "is not UTF-8")


def test_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_bytes(b" " * (limits.MANIFEST_BYTES.value + 1))
    with pytest.raises(InvalidManifest, match="larger than 4 MiB"):
        document.read(path)


ROOT = Path(__file__).parents[4]
OURS = "# yaml-language-server: $schema=../schemas/manifest.schema.json\n"


@pytest.mark.parametrize(
    "text",
    [
        "schema_version: 1\nname: a\nmodel_groups: {}\n",
        "name: a\nexecution_providers:\n  a: {}\nschema_version: 2\n",
        '"schema_version": 1\n"model_groups": {}\n',
        "schema_version: 1\nmodel_groups: {a: [}\n",
        f"{OURS}schema_version: 1\nname: a\n",
        "# yaml-language-server: $schema=https://x.org/epctx/v1/manifest.schema.json\r\n"
        "schema_version: 1\r\n",
        "\ufeffschema_version: 1\nmodel_groups: {}\n",
        "# yaml-language-server: $schema=../schemas/manifest.bundle.schema.json\n"
        "schema_version: 1\n",
    ],
)
def test_a_manifest_is_known_even_where_it_is_wrong(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    assert reader.is_manifest(path)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "schema_version: 1\nservices: {}\n",
        "version: 2\nmodel_groups: {}\n",
        "tool:\n  schema_version: 1\n  model_groups: {}\n",
        "lock_version: 1\nexecution_providers: {}\nschema_version: 1\n",
        "# yaml-language-server: $schema=https://x.org/o/manifest.schema.json\nschema_version: 1\n",
        OURS,
    ],
)
def test_what_is_of_another_tool_is_left_alone(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(text, encoding="utf-8")
    assert not reader.is_manifest(path)


@pytest.mark.needs("POSIX", "has no FIFOs")
def test_a_pipe_is_none_and_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.yaml")
    assert not reader.is_manifest(tmp_path / "a.yaml")


def test_what_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert not reader.is_manifest(tmp_path)
    assert not reader.is_manifest(tmp_path / "a.yaml")


def test_of_what_is_checked_in_here_it_is_the_manifests() -> None:
    for folder in ("manifests", "examples", ".github"):
        for path in ROOT.joinpath(folder).rglob("*.yaml"):
            own = path.name == "epctx.yaml" or path.parent.name == "manifests"
            if not path.name.endswith(".lock.yaml") and own:
                assert reader.is_manifest(path), path
            if path.name.endswith(".lock.yaml") or folder == ".github":
                assert not reader.is_manifest(path), path


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
    told, remedy = reader.refuse_folder(tmp_path) or ("", "")
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
