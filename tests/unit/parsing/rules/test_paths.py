"""Paths: inside the manifest's folder, links followed."""

from pathlib import Path

import pytest

from epctx.parsing.rules.settings import Places


@pytest.fixture
def places(tmp_path: Path) -> Places:
    folder = tmp_path / "project"
    (folder / "models").mkdir(parents=True)
    return Places(folder=folder)


@pytest.mark.parametrize(
    "text",
    ["a.onnx", "models/a.onnx", "./a.onnx", "models/../a.onnx", "a b.onnx", "模型.onnx", "."],
)
def test_paths_inside(places: Places, text: str) -> None:
    assert places.problem(text) is None


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("../a.onnx", "leads out"),
        ("models/../../a.onnx", "leads out"),
        ("..", "leads out"),
        ("/a.onnx", "is an absolute path"),
        ("C:/a.onnx", "is an absolute path"),
        ("//server/share/a.onnx", "is an absolute path"),
    ],
)
def test_paths_outside(places: Places, text: str, what: str) -> None:
    problem = places.problem(text)
    assert problem is not None and what in problem[0] and problem[1]


@pytest.mark.parametrize(
    "text", ["a\\b.onnx", "https://example.org/a.onnx", "~/a.onnx", "s3://b/a"]
)
def test_spellings_that_no_permission_helps(places: Places, text: str) -> None:
    allowed = Places(folder=places.folder, allow_outside=True)
    assert places.problem(text) is not None
    assert allowed.problem(text) is not None


def test_outside_can_be_allowed(places: Places) -> None:
    allowed = Places(folder=places.folder, allow_outside=True)
    assert allowed.problem("../a.onnx") is None
    assert allowed.problem("/a.onnx") is None
    assert allowed.absolute("/a.onnx") == Path("/a.onnx").absolute()


@pytest.mark.needs("links")
def test_files_of_a_folder_that_is_inside_are_asked_for_links_one_by_one(
    places: Places, tmp_path: Path
) -> None:
    (places.folder / "models/a.onnx").touch()
    (places.folder / "models/link.onnx").symlink_to(tmp_path / "b.onnx")
    (places.folder / "models/link").symlink_to(tmp_path)
    assert places.problem("models/a.onnx") is None
    for text in ("models/link.onnx", "models/link/b.onnx", "models/link"):
        assert "leads out" in (places.problem(text) or ("",))[0]
    assert places.problem("../project/models/a.onnx") is None


@pytest.mark.needs("links")
def test_links_are_followed(places: Places, tmp_path: Path) -> None:
    (tmp_path / "secret.onnx").write_bytes(b"")
    (places.folder / "out.onnx").symlink_to(tmp_path / "secret.onnx")
    (places.folder / "folder").symlink_to(tmp_path)
    (places.folder / "in.onnx").symlink_to(places.folder / "models" / "a.onnx")
    assert "leads out" in (places.problem("out.onnx") or ("",))[0]
    assert "leads out" in (places.problem("folder/secret.onnx") or ("",))[0]
    assert places.problem("in.onnx") is None


def test_a_loop_of_links_is_told(places: Places) -> None:
    (places.folder / "a").symlink_to(places.folder / "b")
    (places.folder / "b").symlink_to(places.folder / "a")
    assert "cannot be followed" in (places.problem("a/x.onnx") or ("",))[0]


def test_the_manifests_folder_may_be_a_link(places: Places, tmp_path: Path) -> None:
    (tmp_path / "linked").symlink_to(places.folder)
    assert Places(folder=tmp_path / "linked").problem("models/a.onnx") is None


def test_patterns_give_files_in_one_order(places: Places) -> None:
    for name in ("b.npz", "a.npz", "B.npz", "sub/c.npz"):
        path = places.folder / "cases" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    (places.folder / "cases" / "d.npz").mkdir()
    found = [p.relative_to(places.folder).as_posix() for p in places.files("cases/*.npz")]
    assert set(found) >= {"cases/a.npz", "cases/b.npz"} and found == sorted(found)
    assert "cases/d.npz" not in found
    deep = [p.name for p in places.files("**/*.npz")]
    assert "c.npz" in deep
    assert places.files("none/*.npz") == ()


def test_a_path_without_a_pattern_is_itself(places: Places) -> None:
    assert places.files("cases/a.npz") == (places.folder / "cases" / "a.npz",)


def test_a_name_that_this_locale_cannot_say_is_told_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resolve(path: Path, strict: bool = False) -> Path:
        return Path(str(path).encode("ascii").decode())

    monkeypatch.setattr(Path, "resolve", resolve)
    what, remedy = Places(folder=tmp_path).problem("m😀.onnx") or ("", "")
    assert what.startswith("cannot be encoded: file names are ")
    assert "PYTHONUTF8=1" in remedy
