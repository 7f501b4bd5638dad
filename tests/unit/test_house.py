"""The shape of the package and the tests, beyond the import contracts of .importlinter."""

import ast
import re
from pathlib import Path

import pytest

import epctx

ROOT = Path(epctx.__file__).parent
TESTS = Path(__file__).parent.parent
LAZY = ("__getattr__", "__dir__")
"""Functions that make a re-export lazy (PEP 562)."""
FACES = sorted(ROOT.rglob("__init__.py"))


def logic_in(face: Path) -> list[str]:
    """Return the functions and classes that an `__init__.py` defines; lazy re-exports are none."""
    tree = ast.parse(face.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [n.name for n in ast.walk(tree) if isinstance(n, kinds) and n.name not in LAZY]


@pytest.mark.parametrize("face", FACES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_faces_hold_no_logic(face: Path) -> None:
    assert logic_in(face) == []


def test_logic_in_a_face_is_found(tmp_path: Path) -> None:
    face = tmp_path / "__init__.py"
    face.write_text('"""A face."""\n\n\ndef work() -> None:\n    pass\n')
    assert logic_in(face) == ["work"]


def importing_tests(tests: Path) -> list[str]:
    """Return the modules that import a test module; shared helpers belong into tests/kit."""
    imports = re.compile(r"^\s*(from|import) tests\.[\w.]*\btest_\w+", re.MULTILINE)
    paths = (path for path in tests.rglob("*.py") if imports.search(path.read_text("utf-8")))
    return sorted(path.relative_to(tests).as_posix() for path in paths)


def test_no_test_is_imported_by_another(tmp_path: Path) -> None:
    assert importing_tests(TESTS) == []
    (tmp_path / "test_a.py").write_text("from tests.unit.test_b import helper\n")
    (tmp_path / "test_b.py").write_text("from tests.kit import projects\n")
    assert importing_tests(tmp_path) == ["test_a.py"]
