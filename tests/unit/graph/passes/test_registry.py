"""Passes by name: built in, of third parties, misspelt, twice, broken."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx_ir as ir
import pytest

from epctx.errors import ManifestError
from epctx.graph.passes import registry
from epctx.graph.passes.scratch import Scratch

Install = Callable[..., Path]

GOOD = """
import onnx_ir as ir
from epctx.graph.passes.base import CountingPass

class Shout(CountingPass):
    def apply(self, model):
        for node in model.graph:
            node.name = (node.name or "").upper()
        return {"nodes": len(model.graph), "never": 0}
"""


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Make a package that adds passes, as pip would leave it."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(module: str, source: str, **passes: str) -> Path:
        monkeypatch.delitem(sys.modules, module, raising=False)
        file = tmp_path / f"{module}.py"
        file.write_text(source, encoding="utf-8")
        info = tmp_path / f"{module}-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.2\n")
        lines = [f"{name.replace('_', '-')} = {module}:{to}" for name, to in passes.items()]
        (info / "entry_points.txt").write_text("[epctx.passes]\n" + "\n".join(lines) + "\n")
        return file

    return make


def test_a_misspelt_name_is_an_error_that_knows_better() -> None:
    with pytest.raises(ManifestError) as raised:
        registry.check(("fold-constants", "fold-constant"), where="group llm")
    assert str(raised.value) == (
        'group llm: optimize names the pass "fold-constant", which does not exist\n'
        '  -> did you mean "fold-constants"?'
    )


def test_a_third_partys_pass_is_found_by_its_name(install: Install, tmp_path: Path) -> None:
    install("epctx_shout", GOOD, shout="Shout")
    assert "shout" in registry.names()
    assert registry.owner("shout") == "epctx_shout 1.2"
    made = registry.create("shout", Scratch(tmp_path))
    assert isinstance(made, ir.passes.InPlacePass)
    with pytest.raises(ManifestError, match='did you mean "shout"'):
        registry.check(("shouts",))


def test_those_of_others_are_told_from_built_in_ones(install: Install) -> None:
    install("epctx_shout", GOOD, shout="Shout")
    found = registry.of_others(("basic", "fold-constants", "shout"))
    assert {name: entry.module for name, entry in found.items()} == {"shout": "epctx_shout"}
    with pytest.raises(ManifestError, match='did you mean "shout"'):
        registry.of_others(("shouts",))


def test_a_broken_package_names_itself_and_harms_nobody_else(
    install: Install, tmp_path: Path
) -> None:
    install("epctx_broken", "import nonexistent_module\n", breaks="Pass")
    install("epctx_shout", GOOD, shout="Shout")
    registry.create("shout", Scratch(tmp_path))
    with pytest.raises(ManifestError) as raised:
        registry.create("breaks", Scratch(tmp_path))
    assert str(raised.value) == (
        "optimize pass breaks: the package epctx_broken 1.2 cannot make the pass: "
        "ModuleNotFoundError: No module named 'nonexistent_module'\n"
        "  -> repair or reinstall that package, or take the pass out of `optimize`"
    )


def test_what_is_no_pass_is_refused(install: Install, tmp_path: Path) -> None:
    install("epctx_odd", "def make():\n    return 7\n", odd="make")
    with pytest.raises(ManifestError, match=r"epctx_odd 1\.2 makes a int"):
        registry.create("odd", Scratch(tmp_path))


def test_a_name_of_two_packages_is_an_error(install: Install) -> None:
    install("epctx_one", GOOD, shout="Shout")
    install("epctx_two", GOOD, shout="Shout")
    with pytest.raises(ManifestError, match=r"epctx_one 1\.2 and epctx_two 1\.2 both have"):
        registry.check(("shout",))


def test_a_built_ins_name_cannot_be_taken(install: Install, tmp_path: Path) -> None:
    install("epctx_thief", GOOD, simplify="Shout")
    made = registry.create("simplify", Scratch(tmp_path))
    assert type(made).__module__ == "epctx.graph.passes.rules"
    assert registry.names().count("simplify") == 1


def test_names_are_checked_without_importing_onnx() -> None:
    code = (
        "import sys; from epctx.graph.passes import registry; registry.check(('simplify',));"
        "print([m for m in ('onnx', 'onnx_ir', 'numpy') if m in sys.modules])"
    )
    printed = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    assert printed.stdout.strip() == "[]"
