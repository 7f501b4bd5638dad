"""Any valid manifest is read; whatever else is given, nothing but a ManifestError comes out."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from epctx import codec, manifest
from epctx.errors import InvalidManifest
from epctx.parsing import document, load
from tests.kit import strategies

settings.register_profile("manifest", max_examples=100, deadline=None,
                          suppress_health_check=[HealthCheck.too_slow])  # fmt: skip
PROFILE = settings.get_profile("manifest")
HERE = Path("/nowhere/manifest.yaml")


def outcome(text: bytes) -> manifest.Manifest | InvalidManifest:
    """The manifest, or the one error that may come out."""
    try:
        read = document.parse(text, file="m.yaml", path=HERE)
        violations = load.violations(read)
        if violations:
            raise InvalidManifest(violations)
        return load.parse(read)
    except InvalidManifest as error:
        for violation in error.violations:
            assert violation.what and violation.remedy and "\n" not in str(violation.what)
            assert (violation.line >= 1 and violation.column >= 1) or not violation.path
        assert str(error)
        return error


def written(value: Any, style: str) -> bytes:
    if style == "json":
        return json.dumps(value).encode()
    quotes = '"' if style == "quoted" else None
    return yaml.safe_dump(value, default_style=quotes, allow_unicode=True, sort_keys=False).encode()


@PROFILE
@given(strategies.manifests(), st.sampled_from(["json", "quoted", "block"]))
def test_valid_manifests_are_read_however_they_are_written(value: Any, style: str) -> None:
    loaded = outcome(written(value, style))
    assert isinstance(loaded, manifest.Manifest), loaded
    assert loaded.name == value["name"]
    assert {target.name for target in loaded.targets} == set(value.get("targets", ["default"]))
    built = {group.name: group for target in loaded.targets for group in target.groups}
    for name, group in built.items():
        declared = value["model_groups"][name]
        assert [model.name for model in group.models] == declared["models"]
        assert [ep.alias for ep in group.execution_providers] == declared["execution_providers"]
        assert group.embed_mode == declared.get("embed_mode", 0)
    assert codec.decode(codec.encode(loaded), manifest.Manifest) == loaded


@PROFILE
@given(strategies.broken_manifests(), st.sampled_from(["json", "quoted"]))
def test_broken_manifests_are_told_or_read(value: Any, style: str) -> None:
    loaded = outcome(written(value, style))
    if isinstance(loaded, manifest.Manifest):
        assert codec.decode(codec.encode(loaded), manifest.Manifest) == loaded


@PROFILE
@given(strategies.manifests(), st.data())
def test_damaged_text_is_told_or_read(value: Any, data: st.DataObject) -> None:
    text = bytearray(written(value, data.draw(st.sampled_from(["json", "block"]))))
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(start + 8, len(text))))
        text[start:end] = data.draw(st.binary(max_size=6) | st.sampled_from(
            [b"\n", b"  ", b"\t", b"{", b"]", b": ", b"&a ", b"*a", b"!!x ", b"'", b"# ", b"- "]
        ))  # fmt: skip
    outcome(bytes(text))


@PROFILE
@given(st.text(alphabet="ab:-[]{}&*!|>'\"#%@`,? \n\t0.e<", max_size=40))
def test_any_text_is_told_or_read(text: str) -> None:
    outcome(text.encode())
