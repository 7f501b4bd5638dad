"""The shape of the package, as far as no import contract can say it (.importlinter has those)."""

import ast
from pathlib import Path

import pytest

import epctx

ROOT = Path(epctx.__file__).parent
GROUND = {
    "__init__.py",
    "__main__.py",
    "_version.py",
    "api.py",
    "codec.py",
    "error_codes.py",
    "errors.py",
    "limits.py",
    "manifest.py",
    "text.py",
}
LONGEST = 12
"""Lines of a face that are neither docstring nor re-exports."""


LAZY = ("__getattr__", "__dir__")
"""What makes a re-export lazy (PEP 562)."""


def too_many(root: Path) -> set[str]:
    """The modules at the top that are none of the ten, and those of the ten that are missing."""
    return {path.name for path in root.glob("*.py")} ^ GROUND


def logic_in(face: Path) -> list[str]:
    """What an `__init__.py` holds beside a docstring and re-exports, which may be lazy."""
    tree = ast.parse(face.read_text(encoding="utf-8"))
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    found = [n.name for n in ast.walk(tree) if isinstance(n, kinds) and n.name not in LAZY]
    lines = sum((n.end_lineno or 0) - n.lineno + 1 for n in tree.body if not _re_exports(n))
    return [*found, *([f"{lines} lines"] if lines > LONGEST else [])]


def _re_exports(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):  # for type checkers
        return all(map(_re_exports, statement.body))
    if isinstance(statement, ast.Assign):
        return ast.unparse(statement.targets[0]) in ("__all__", "TYPE_CHECKING")
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.Import | ast.ImportFrom)


def test_ten_modules_are_at_the_top() -> None:
    assert too_many(ROOT) == set()


FACES = sorted(ROOT.rglob("__init__.py"))


@pytest.mark.parametrize("face", FACES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_faces_hold_no_logic(face: Path) -> None:
    assert logic_in(face) == []


def test_a_tenth_module_at_the_top_is_found(tmp_path: Path) -> None:
    for name in (*GROUND, "helpers.py"):
        (tmp_path / name).touch()
    assert too_many(tmp_path) == {"helpers.py"}


def test_logic_in_a_face_is_found(tmp_path: Path) -> None:
    face = tmp_path / "__init__.py"
    face.write_text('"""A face."""\n\n\ndef work() -> None:\n    pass\n')
    assert logic_in(face) == ["work"]
    face.write_text("names = [\n" + '    "one",\n' * LONGEST + "]\n")
    assert logic_in(face) == [f"{LONGEST + 2} lines"]
