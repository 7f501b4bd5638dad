"""Every page of docs/ says what works: its files, commands and programs, in an empty folder.

The examples of docs/errors are those of test_error_pages.py. `tests.kit.pages` says what is run.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from tests.kit import pages, photos

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TEXTS = {
    path.relative_to(DOCS).as_posix(): path.read_text(encoding="utf-8")
    for path in sorted(DOCS.rglob("*.md"))
    if path.parent.name != "errors"
}
PREPARED = {"howto/photos.md": photos.write}
"""What puts the files of the reader into the folder, by page."""
NEEDED = {"QNNExecutionProvider": "onnxruntime_qnn", "OpenVINO": "onnxruntime_ep_openvino"}
MANIFEST = json.loads((ROOT / "schemas" / "manifest.bundle.schema.json").read_text("utf-8"))


def followed(name: str, script: str) -> object:
    needs = [
        pytest.mark.needs(f"module {module}", "the page builds for it")
        for word, module in NEEDED.items()
        if word in script
    ]
    return pytest.param(name, id=name, marks=needs)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one page built, another need not."""
    return tmp_path_factory.mktemp("cache")


@pytest.mark.needs("program bash", "its console is one of a POSIX shell")
@pytest.mark.parametrize(
    "name",
    [followed(name, ran) for name, text in TEXTS.items() if (ran := pages.script(text))],
)
def test_a_page_works(name: str, tmp_path: Path, cache: Path) -> None:
    PREPARED.get(name, Path)(tmp_path)
    ran = pages.follow(TEXTS[name], tmp_path, EPCTX_CACHE_DIR=str(cache))
    assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.needs("module onnxruntime_qnn")
def test_the_accuracy_is_what_the_page_says(tmp_path: Path, cache: Path) -> None:
    text = TEXTS["howto/photos.md"]
    photos.write(tmp_path)
    ran = pages.follow(text, tmp_path, EPCTX_CACHE_DIR=str(cache))
    shown = [line for line in text.splitlines() if re.fullmatch(r"\d+ of \d+ right", line)]
    assert (
        len(shown) == 2 and [line for line in ran.stdout.splitlines() if "right" in line] == shown
    )


def test_what_is_to_be_installed_can_be() -> None:
    known = importlib.metadata.metadata("epctx").get_all("Provides-Extra") or []
    named = {extra for text in TEXTS.values() for extra in pages.installed(text)}
    assert named and named <= set(known)


def parts_of_manifests() -> Iterator[object]:
    """The YAML of pages that has keys of a manifest and of nothing else."""
    for name, text in TEXTS.items():
        for number, (_, _, kind, code) in enumerate(pages.fences(text)):
            part = yaml.safe_load(code) if kind == "yaml" else None
            if isinstance(part, dict) and part.keys() <= MANIFEST["properties"].keys():
                yield pytest.param(part, id=f"{name}-{number}")


@pytest.mark.parametrize("part", list(parts_of_manifests()))
def test_a_part_of_a_manifest_is_valid(part: dict[str, object]) -> None:
    schema = {key: value for key, value in MANIFEST.items() if key != "required"}
    assert [error.message for error in Draft202012Validator(schema).iter_errors(part)] == []
