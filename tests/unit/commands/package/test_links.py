"""Where the texts of a package lead, as ONNX Runtime resolves them in the portable layout."""

from pathlib import Path

import pytest

from epctx.commands.package.form import PackagePlaces, Unresolved

HEX = "ab" * 32


@pytest.fixture
def places(tmp_path: Path) -> PackagePlaces:
    for name in ("v/m.onnx", f"shared_assets/sha256-{HEX}/sub/t.json", "elsewhere/t.json"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return PackagePlaces(root=tmp_path, overrides={f"sha256:{'c' * 64}": "elsewhere"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x.onnx", "does not exist in the package"),
        ("../v/m.onnx", "it has `..`"),
        ("/v/m.onnx", "it is absolute"),
        ("C:/m.onnx", "it is absolute"),
        ("sub\\m.onnx", "backslash"),
        (f"sha256:{HEX}/../x", "it has `..`"),
        (f"sha256:{'d' * 64}", "does not exist"),
        (f"sha256:{HEX.upper()}", "does not exist"),
        ("m.onnx/x", "does not exist"),
        ("", "it is empty"),
    ],
)
def test_what_leads_nowhere_or_out_is_refused(places: PackagePlaces, text: str, words: str) -> None:
    with pytest.raises(Unresolved) as error:
        places.anything("v", text)
    assert words in str(error.value)


@pytest.mark.needs("links")
def test_no_link_is_followed(places: PackagePlaces) -> None:
    (places.root / "l").symlink_to(places.root / "v")
    with pytest.raises(Unresolved, match="passes through a link"):
        places.anything("", "l/m.onnx")
    with pytest.raises(Unresolved, match="passes through a link"):
        places.file("", "l/m.onnx")


def test_a_component_is_a_file_or_a_folder_with_one(places: PackagePlaces) -> None:
    (places.root / "c").mkdir()
    (places.root / "c" / "component.json").write_bytes(b"{}")
    assert places.component("c") == places.component("c/component.json") == "c/component.json"
    with pytest.raises(Unresolved):
        places.component("v")


def test_a_variants_folder_is_one(places: PackagePlaces) -> None:
    assert places.folder("", "v") == "v"
    with pytest.raises(Unresolved, match="is not a folder"):
        places.folder("v", "m.onnx")
