"""The quick yes is never a wrong yes, and is a yes where it counts."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from epctx.parsing.schema import apply as schema
from epctx.parsing.schema import providers, quick
from tests.kit import strategies

KINDS = ["string", "integer", "number", "boolean", "null", "array", "object"]
SCALARS = st.sampled_from([None, True, False, 0, 1, 1.0, 1.5, -3, "", "a", "b1", "ab\n", "\u0665"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["a", "b1", "c"]), inner, max_size=3)
    ),
    max_leaves=5,
)


def _rules(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.fixed_dictionaries(
        {},
        optional={
            "type": st.sampled_from(KINDS)
            | st.lists(st.sampled_from(KINDS), min_size=1, unique=True),
            "enum": st.lists(SCALARS, min_size=1, max_size=3),
            "const": SCALARS,
            "pattern": st.sampled_from(["^a", "b$", "^[a-z]*$", r"^\d$", "^(a|b1$)"]),
            "minimum": st.integers(-1, 2),
            "maximum": st.integers(-1, 2),
            "exclusiveMinimum": st.integers(-1, 2),
            "minLength": st.integers(0, 2),
            "maxItems": st.integers(0, 2),
            "minProperties": st.integers(0, 2),
            "uniqueItems": st.booleans(),
            "items": inner,
            "properties": st.dictionaries(st.sampled_from(["a", "c"]), inner, max_size=2),
            "additionalProperties": inner,
            "propertyNames": inner,
            "required": st.lists(st.sampled_from(["a", "b1"]), unique=True),
            "anyOf": st.lists(inner, min_size=1, max_size=2),
            "allOf": st.lists(inner, min_size=1, max_size=2),
            "not": inner,
            "if": inner,
            "then": inner,
            "else": inner,
            "$ref": st.just("#/$defs/d"),
        },
    )


SCHEMAS = st.recursive(st.booleans(), _rules, max_leaves=5)


@settings(max_examples=200, deadline=None)
@given(VALUES, _rules(SCHEMAS), _rules(st.booleans()).map(lambda d: {**d, "$ref": "#/$defs/e"}))
def test_a_yes_is_jsonschemas_yes(value: Any, rules: Any, definition: Any) -> None:
    whole = {**rules, "$defs": {"d": definition, "e": {"type": ["string", "array"]}}}
    if quick.accepts(value, whole, whole):
        assert list(schema.validator(whole).iter_errors(value)) == []


@settings(max_examples=60, deadline=None)
@given(strategies.manifests())
def test_valid_manifests_are_accepted_quickly(manifest: Any) -> None:
    levels = [group.get("optimize", {}).get("level") for group in manifest["model_groups"].values()]
    if not any(isinstance(level, list) for level in levels):
        assert quick.accepts(manifest, schema.manifest(), schema.manifest())


@settings(max_examples=60, deadline=None)
@given(strategies.broken_manifests())
def test_broken_manifests_are_not_accepted(manifest: Any) -> None:
    if quick.accepts(manifest, schema.manifest(), schema.manifest()):
        assert list(schema.validator(schema.manifest()).iter_errors(manifest)) == []


@pytest.mark.parametrize("name", providers.bundled())
def test_options_of_bundled_providers_are_accepted_quickly(name: str) -> None:
    found = providers.find(name)
    assert found is not None
    defaults = {n: o["default"] for n, o in found.properties.items() if "default" in o}
    assert quick.accepts({}, dict(found.validation), found.validation)
    whole = jsonschema.Draft202012Validator({**found.validation})
    assert quick.accepts(defaults, dict(found.validation), found.validation) == whole.is_valid(
        defaults
    )


def test_a_valid_manifest_loads_without_jsonschema(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(
        json.dumps(
            {
                "schema_version": 1,
                "name": "m",
                "models": {"a": {"path": "a.onnx"}},
                "execution_providers": {
                    "htp": {"provider": "QNNExecutionProvider", "options": {"soc_model": 60}}
                },
                "model_groups": {"g": {"models": ["a"], "execution_providers": ["htp"]}},
            }
        ),
        encoding="utf-8",
    )
    code = (
        "import sys, pathlib; from epctx.parsing.load import load;"
        "load(pathlib.Path(sys.argv[1]));"
        "slow = ('jsonschema', 'onnx', 'numpy', 'importlib.metadata');"
        "print(*[module for module in slow if module in sys.modules])"
    )
    argv = [sys.executable, "-c", code, str(tmp_path / "m.yaml")]
    printed = subprocess.run(argv, capture_output=True, text=True, check=True)
    assert printed.stdout.split() == []
