"""What the toolchain's part of a key is made of; that nothing of epctx is missing in it."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import epctx
from epctx.actions.kinds import CODE
from epctx.cache.digests import FreshDigests
from epctx.errors import ManifestError, ProviderUnavailable
from epctx.files import digest
from epctx.keys import Toolchain
from epctx.keys import toolchain as toolchains
from epctx.keys.toolchain import EVERY
from epctx.manifest import ProviderSpec
from epctx.providers import registry
from epctx.providers.base import Fingerprint

ROOT = Path(epctx.__file__).parent
REAL = {
    "QNNExecutionProvider": "onnxruntime_qnn",
    "OpenVINOExecutionProvider": "onnxruntime_ep_openvino",
}


@pytest.fixture
def toolchain() -> Toolchain:
    return Toolchain(FreshDigests())


# --- epctx's own sources ---

STARTS: Mapping[str, tuple[str, ...]] = {
    "optimize": ("stages/load.py", "stages/optimize.py", "graph/store.py"),
    "quantize": ("graph/store.py", "stages/quantize.py"),
    "compile": (
        "graph/store.py",
        "stages/partition.py",
        "stages/compile.py",
        "stages/compile.py",
        "providers/registry.py",
    ),
    "cut": ("graph/store.py", "stages/pieces.py"),
    "assemble": ("graph/store.py", "stages/pieces.py", "stages/compile.py"),
    "recording": ("stages/record.py",),
    "source": ("verification/folder.py", "verification/numbers/expected.py"),
    "run": ("stages/verify.py", "verification/numbers/files.py", "verification/numbers/golden.py"),
    "check": ("stages/verify.py",),
    "verify": ("stages/verify.py",),
    "compose": ("stages/compose.py", "stages/verify.py"),
}
FRONT = ("parsing",)
"""What `manifest.load`, and a session whose EPs a caller names, import: workers are given manifests
that were parsed, and sessions EPs that are bound to their options."""
BEHIND = (ROOT / "manifest.py", ROOT / "inference" / "selection.py")


def module_file(name: str) -> Path | None:
    place = ROOT.joinpath(*name.split(".")[1:])
    for path in (place.with_suffix(".py"), place / "__init__.py"):
        if path.is_file() and path != ROOT / "__init__.py":
            return path
    return None


def imports(path: Path) -> set[Path]:
    """The modules of epctx that a module imports anywhere but for its types."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "epctx":
            found.add(str(node.module))
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names if a.name.startswith("epctx."))
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text(encoding="utf-8")))
    parents = {".".join(n.split(".")[:i]) for n in found for i in range(2, n.count(".") + 1)}
    return {file for name in found | parents if (file := module_file(name)) is not None}


def reached(start: Path, seen: dict[Path, Path | None]) -> None:
    for path in imports(start):
        front = path.relative_to(ROOT).with_suffix("").parts[0] in FRONT
        if path not in seen and not (front and start in BEHIND):
            seen[path] = start
            reached(path, seen)


@pytest.mark.parametrize("action", CODE)
def test_every_module_that_an_action_runs_is_in_its_key(action: str) -> None:
    seen: dict[Path, Path | None] = {ROOT / start: None for start in STARTS[action]}
    for start in list(seen):
        reached(start, seen)
    patterns = (*EVERY, *CODE[action].sources)
    if action in ("check", "recording", "run", "verify"):  # the key of the compile is in theirs
        patterns += CODE["compile"].sources
    listed = {path for pattern in patterns for path in ROOT.glob(pattern)}
    own_packages = ROOT / "providers"
    missing = {
        f"{path.relative_to(ROOT)} (imported by {by and by.relative_to(ROOT)})"
        for path, by in seen.items()
        if path not in listed and path.parent.parent != own_packages
    }
    assert not missing


def test_every_pattern_matches_something() -> None:
    for pattern in (*EVERY, *(each for code in CODE.values() for each in code.sources)):
        assert list(ROOT.glob(pattern)), pattern


def test_an_edit_of_a_stage_changes_the_keys_that_run_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for pattern in (*EVERY, *CODE["compile"].sources, *CODE["optimize"].sources):
        for path in ROOT.glob(pattern):
            copy = tmp_path / path.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(toolchains, "__file__", str(tmp_path / "keys" / "toolchain.py"))

    def own(action: str) -> str:
        return Toolchain(FreshDigests()).of(*CODE[action])["epctx"]

    before = own("optimize"), own("compile")
    (tmp_path / "stages" / "compile.py").write_text("edited")
    assert own("optimize") == before[0]
    assert own("compile") != before[1]


# --- libraries ---


def test_versions_are_the_installed_ones(toolchain: Toolchain) -> None:
    found = toolchain.of(*CODE["compile"])
    assert found["numpy"] == importlib.metadata.version("numpy")
    assert found["onnxruntime"] == importlib.metadata.version("onnxruntime")
    assert found["epctx"].startswith("blake3:")
    assert "onnxruntime" in toolchain.of(*CODE["optimize"]), (
        "it tells types that onnx does not know"
    )


def test_another_distribution_of_onnxruntime_is_another_version(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from epctx.providers.onnxruntime import packages

    found = packages.Package(distribution="onnxruntime-gpu", version="1.31.1", folder=tmp_path)
    monkeypatch.setattr(packages, "onnxruntime", lambda: found)
    toolchains.version.cache_clear()
    try:
        assert toolchains.version("onnxruntime") == "onnxruntime-gpu 1.31.1"
    finally:
        toolchains.version.cache_clear()


def test_a_library_that_another_comes_before_is_its_sources_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = Toolchain(FreshDigests()).of(*CODE["optimize"])
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "onnx_ir").mkdir()
    (tmp_path / "onnx_ir" / "__init__.py").write_text("")
    found = dict(Toolchain(FreshDigests()).of(*CODE["optimize"]))
    assert found.pop("onnx-ir/sources").startswith("blake3:")
    assert found == before


# --- passes ---


@pytest.fixture
def shouting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that brings a pass; its folder."""
    package = tmp_path / "shouting"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    info = tmp_path / "shouting-1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: shouting\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text("[epctx.passes]\nshout = shouting.inner:Shout\n")
    monkeypatch.syspath_prepend(tmp_path)
    return package


def test_a_pass_of_others_is_its_package_its_version_and_its_code(shouting: Path) -> None:
    (shouting / "inner.py").write_text("")
    found = Toolchain(FreshDigests()).passes(("basic", "fold-constants", "shout"))
    assert found.keys() == {"shout"}
    assert found["shout"].startswith("shouting 1.2 blake3:")
    (shouting / "table.bin").write_bytes(b"more")
    assert Toolchain(FreshDigests()).passes(("shout",)) != found


def test_a_pass_whose_module_is_gone_is_told(shouting: Path) -> None:
    for path in shouting.iterdir():
        path.unlink()
    shouting.rmdir()
    with pytest.raises(ManifestError, match=r"pass shout: shouting\.inner cannot be found"):
        Toolchain(FreshDigests()).passes(("shout",))


# --- EPs ---


def test_no_fingerprint_imports_onnxruntime() -> None:
    import subprocess

    listed = [tuple(each) for each in CODE.values()]
    code = f"""
import sys
from epctx.cache.digests import FreshDigests
from epctx.keys import Toolchain
from epctx.manifest import ProviderSpec
toolchain = Toolchain(FreshDigests())
for name in sys.argv[1:]:
    toolchain.provider(ProviderSpec(alias="a", provider=name))
for code in {listed}:
    toolchain.of(*code)
heavy = ("numpy", "onnx", "onnx_ir", "onnxruntime", "jsonschema")
print(*[module for module in heavy if module in sys.modules])
"""
    names = ["ReferenceExecutionProvider"]
    names += [name for name in REAL if importlib.util.find_spec(REAL[name]) is not None]
    done = subprocess.run(
        [sys.executable, "-c", code, *names],
        capture_output=True,
        text=True,
    )
    assert (done.stdout.strip(), done.stderr) == ("", "")


class _Provider:
    """An EP as if of the package acme_ep."""

    __module__ = "acme_ep"

    def __init__(self, **files: Path) -> None:
        self._files = files

    def fingerprint(self) -> Fingerprint:
        return Fingerprint(toolchain={"b": "1"}, files=self._files)


@pytest.fixture
def third_party(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An installed package that brings an EP; the folder that it is in."""
    package = tmp_path / "acme_ep"
    (package / "__pycache__").mkdir(parents=True)
    (package / "__init__.py").write_text("raise AssertionError('imported')")
    (package / "kernels.so").write_bytes(b"native")
    info = tmp_path / "acme_ep-2.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-ep\nVersion: 2.5\n")
    (info / "entry_points.txt").write_text(
        "[epctx.execution_providers]\nAcmeExecutionProvider = acme_ep:Provider\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(registry, "create", lambda spec: _Provider())
    return package


ACME = ProviderSpec(alias="a", provider="AcmeExecutionProvider")


def test_an_ep_of_others_is_its_package_its_version_and_its_files(third_party: Path) -> None:
    record = Toolchain(FreshDigests()).provider(ACME)
    assert record.code.startswith("acme-ep 2.5 blake3:")
    assert record.toolchain == {"b": "1"}


def test_an_edit_of_any_file_of_theirs_is_another_ep(third_party: Path) -> None:
    before = Toolchain(FreshDigests()).provider(ACME)
    (third_party / "__pycache__" / "x.pyc").write_bytes(b"compiled")
    assert Toolchain(FreshDigests()).provider(ACME) == before
    (third_party / "kernels.so").write_bytes(b"edited")
    assert Toolchain(FreshDigests()).provider(ACME).code != before.code


@pytest.mark.needs("Linux", "the variable is Linux's")
@pytest.mark.usefixtures("third_party")
def test_what_comes_before_a_library_is_digested_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib.so"
    other = tmp_path / "other" / "lib.so"
    other.parent.mkdir()
    for path in (library, other, other.with_name("more.so")):
        path.write_bytes(b"native")
    monkeypatch.setattr(registry, "create", lambda spec: _Provider(lib=library))
    monkeypatch.setenv("LD_LIBRARY_PATH", f":/missing:{other.parent}")
    found = Toolchain(FreshDigests()).provider(ACME).toolchain
    assert found.keys() == {"b", "lib", "LD_LIBRARY_PATH 1/lib.so"}
    other.write_bytes(b"another")
    assert Toolchain(FreshDigests()).provider(ACME).toolchain != found


@pytest.mark.usefixtures("third_party")
def test_libraries_are_digested_under_their_labels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(b"native")
    monkeypatch.setattr(registry, "create", lambda spec: _Provider(lib=library))
    record = Toolchain(FreshDigests()).provider(ACME)
    assert record.toolchain == {"b": "1", "lib": str(digest.of_bytes(b"native"))}
    library.unlink()
    with pytest.raises(ProviderUnavailable, match=r"lib\.so of Acme.* cannot be read"):
        Toolchain(FreshDigests()).provider(ACME)


@pytest.mark.usefixtures("third_party")
def test_options_that_are_paths_are_their_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "create", lambda spec: _Provider())
    (tmp_path / "folder" / "sub").mkdir(parents=True)
    (tmp_path / "folder" / "sub" / "file").write_bytes(b"content")
    (tmp_path / "file").write_bytes(b"content")

    def options(**values: Path | str) -> Mapping[str, object]:
        spec = ProviderSpec(
            alias="r",
            provider=ACME.provider,
            options={name: str(value) for name, value in values.items()},
            path_options=("where", "absent"),
        )
        return Toolchain(FreshDigests()).provider(spec).options

    assert options(where=tmp_path / "file", other="x") == {
        "where": str(digest.of_bytes(b"content")),
        "other": "x",
    }
    before = options(where=tmp_path / "folder")
    assert str(tmp_path) not in str(before)
    (tmp_path / "folder" / "sub" / "file").write_bytes(b"edited")
    assert options(where=tmp_path / "folder") != before
    with pytest.raises(ManifestError, match=r"the option where names .*nothing, which cannot"):
        options(where=tmp_path / "nothing")
