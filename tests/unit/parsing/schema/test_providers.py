"""Option schemas of installed third parties are found without importing their packages."""

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from epctx.errors import ProviderUnavailable
from epctx.parsing.schema import apply as schema
from epctx.parsing.schema import providers

OPTION_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Options of AcmeExecutionProvider",
    "description": "Acme 1.",
    "type": "object",
    "properties": {
        "soc": {"$ref": "#/$defs/soc", "description": "The chip."},
        "key": {"type": "string", "description": "Names things.", "default": "acme"},
    },
    "additionalProperties": False,
    "$defs": {"soc": {"type": ["string", "integer"], "enum": ["1", "2"]}},
    "x-epctx": {"provider": "AcmeExecutionProvider", "label": "{key}-x", "can_share": False},
}

Install = Callable[..., Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Installs a distribution whose provider explodes when it is imported."""

    def do(module: str, place: str, content: str = json.dumps(OPTION_SCHEMA)) -> Path:
        metadata = tmp_path / "acme-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme\nVersion: 1.0\n")
        points = f"[epctx.execution_providers]\nAcmeExecutionProvider = {module}:Acme\n"
        (metadata / "entry_points.txt").write_text(points)
        folder = tmp_path
        for part in module.split("."):
            folder = folder / part
            folder.mkdir()
            (folder / "__init__.py").write_text("raise RuntimeError('imported')\n")
        path = tmp_path / place / "AcmeExecutionProvider.options.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
        return path

    monkeypatch.syspath_prepend(str(tmp_path))
    providers.find.cache_clear()
    providers._entry_points.cache_clear()
    yield do
    providers.find.cache_clear()
    providers._entry_points.cache_clear()


@pytest.mark.parametrize(
    ("module", "place"),
    [
        ("acme", "acme/schemas"),
        ("acme.ep.impl", "acme/ep/schemas"),
        ("acme.ep.impl", "acme/schemas"),
    ],
)
def test_it_is_found_beside_the_entry_point_without_an_import(
    install: Install, module: str, place: str
) -> None:
    install(module, place)
    found = providers.find("AcmeExecutionProvider")
    assert found is not None
    assert found.properties["soc"]["type"] == ["string", "integer"]
    assert found.label({}) == "acme-x"
    assert found.label({"key": "b"}) == "b-x"
    assert "acme" not in sys.modules


def test_it_is_listed_printed_and_folded_in(install: Install) -> None:
    install("acme", "acme/schemas")
    assert "providers/AcmeExecutionProvider" in schema.names()
    assert "AcmeExecutionProvider" in providers.known()
    assert json.loads(schema.text("providers/AcmeExecutionProvider")) == OPTION_SCHEMA
    definitions = json.loads(schema.text("manifest"))["$defs"]
    moved = definitions["options_AcmeExecutionProvider"]
    assert moved["properties"]["soc"]["$ref"] == "#/$defs/options_AcmeExecutionProvider/$defs/soc"


def test_a_package_without_a_schema_has_none(install: Install) -> None:
    install("acme", "elsewhere")
    assert providers.find("AcmeExecutionProvider") is None
    assert providers.third_party() == []


def test_a_module_that_is_not_there_has_none(install: Install, tmp_path: Path) -> None:
    install("acme", "acme/schemas")
    (tmp_path / "acme").rename(tmp_path / "gone")
    assert providers.find("AcmeExecutionProvider") is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "Expecting"),
        ("[]", "is not of type 'object'"),
        (json.dumps({**OPTION_SCHEMA, "type": "nonsense"}), "nonsense"),
        (json.dumps({**OPTION_SCHEMA, "additionalProperties": True}), "False was expected"),
        (json.dumps({**OPTION_SCHEMA, "x-epctx": {"label": "a"}}), "required property"),
    ],
)
def test_a_broken_schema_names_itself(install: Install, content: str, why: str) -> None:
    path = install("acme", "acme/schemas", content)
    with pytest.raises(ProviderUnavailable) as caught:
        providers.find("AcmeExecutionProvider")
    assert caught.value.where == str(path)
    assert why in (caught.value.why or "")
    assert "AcmeExecutionProvider" in caught.value.remedy


def test_a_schema_that_is_no_text_names_itself(install: Install) -> None:
    install("acme", "acme/schemas").write_bytes(b"\xff")
    with pytest.raises(ProviderUnavailable, match="cannot be used"):
        providers.find("AcmeExecutionProvider")


def test_epctxs_own_schema_wins_over_an_installed_one(install: Install, tmp_path: Path) -> None:
    path = install("acme", "acme/schemas")
    metadata = tmp_path / "acme-1.0.dist-info" / "entry_points.txt"
    metadata.write_text("[epctx.execution_providers]\nReferenceExecutionProvider = acme:Acme\n")
    path.rename(path.with_name("ReferenceExecutionProvider.options.json"))
    found = providers.find("ReferenceExecutionProvider")
    assert found is not None and found.knowledge.label == "{source}"
    assert providers.third_party() == []


@pytest.mark.parametrize(
    "name", ["x" * 5000, "../manifest", "", "a\0b", "ReferenceExecutionProvider/"]
)
def test_a_name_that_is_no_file_name_is_of_no_schema(name: str) -> None:
    assert providers.find_schema(f"providers/{name}") is None
