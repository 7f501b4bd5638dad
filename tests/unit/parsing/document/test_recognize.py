"""Which YAML files are manifests of epctx."""

import os
from pathlib import Path

import pytest

from epctx.parsing.document import reader

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
