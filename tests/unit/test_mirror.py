"""Unit tests lie where the package has what they test, so that both are found by one path.

`epctx/graph/model.py` is tested by `tests/unit/graph/test_model.py`. Two lists beside this file
have the exceptions, one path a line, and may only shrink.
"""

import re
from pathlib import Path

import pytest

import epctx

PACKAGE = Path(epctx.__file__).parent
TESTS = Path(__file__).parent
WITHOUT_TESTS = "modules_without_tests.txt"
"""Modules without a unit test of their own: other tests go through them."""
OF_NO_MODULE = "tests_of_no_module.txt"
"""Unit tests of no single module, each with its reason after a colon."""


def modules(package: Path) -> set[str]:
    """The modules, by their path below the package; a face holds nothing to test."""
    found = (path for path in package.rglob("*.py") if path.name != "__init__.py")
    return {path.relative_to(package).as_posix() for path in found}


def mirrored(tests: Path) -> dict[str, str]:
    """For each unit test the module that its path says it is of."""
    found = (path.relative_to(tests) for path in tests.rglob("test_*.py"))
    return {path.as_posix(): path.with_name(path.name[5:]).as_posix() for path in found}


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def wrong(package: Path, tests: Path) -> list[str]:
    """What is not where it should be, and what stands on a list for nothing."""
    found, tested = modules(package), mirrored(tests)
    untested = found - set(tested.values())
    stray = {test for test, module in tested.items() if module not in found}
    listed = lines(tests / WITHOUT_TESTS)
    reasons = dict(line.partition(": ")[::2] for line in lines(tests / OF_NO_MODULE))
    return sorted(
        [
            *(f"{module}: has no unit test" for module in untested - set(listed)),
            *(f"{module}: strike it from {WITHOUT_TESTS}" for module in set(listed) - untested),
            *(f"{test}: is of no module" for test in stray - reasons.keys()),
            *(f"{test}: strike it from {OF_NO_MODULE}" for test in reasons.keys() - stray),
            *(f"{test}: needs a reason" for test, reason in reasons.items() if not reason),
            *(f"{name}: is not sorted, or has a line twice" for name in _unsorted(tests)),
        ]
    )


def _unsorted(tests: Path) -> list[str]:
    names = (WITHOUT_TESTS, OF_NO_MODULE)
    return [name for name in names if lines(tests / name) != sorted(set(lines(tests / name)))]


def test_every_module_has_its_unit_test_and_every_unit_test_its_module() -> None:
    assert wrong(PACKAGE, TESTS) == []


def test_the_list_of_modules_without_tests_does_not_grow() -> None:
    """Lower this with the list."""
    assert len(lines(TESTS / WITHOUT_TESTS)) == 133


def importing_tests(tests: Path) -> list[str]:
    """Modules that import a test module: what they want of it belongs into tests/kit."""
    wanted = re.compile(r"^\s*(from|import) tests\.[\w.]*\btest_\w+", re.MULTILINE)
    found = (path for path in tests.rglob("*.py") if wanted.search(path.read_text("utf-8")))
    return sorted(path.relative_to(tests).as_posix() for path in found)


def test_no_test_is_imported_by_another(tmp_path: Path) -> None:
    assert importing_tests(TESTS.parent) == []
    (tmp_path / "test_a.py").write_text("from tests.unit.test_b import helper\n")
    (tmp_path / "test_b.py").write_text("from tests.kit import projects\n")
    assert importing_tests(tmp_path) == ["test_a.py"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("new module", "b/new.py: has no unit test"),
        ("new test", "test_new.py: is of no module"),
        ("test written", f"b/two.py: strike it from {WITHOUT_TESTS}"),
        ("module gone", f"b/two.py: strike it from {WITHOUT_TESTS}"),
        ("test gone", f"test_whole.py: strike it from {OF_NO_MODULE}"),
        ("reason gone", "test_whole.py: needs a reason"),
        ("twice", f"{WITHOUT_TESTS}: is not sorted, or has a line twice"),
    ],
)
def test_what_is_not_where_it_should_be_is_told(tmp_path: Path, change: str, told: str) -> None:
    package, tests = tmp_path / "package", tmp_path / "unit"
    for path in (
        package / "__init__.py",
        package / "a.py",
        package / "b" / "two.py",
        tests / "test_a.py",
        tests / "test_whole.py",
        tests / "b" / "conftest.py",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tests / WITHOUT_TESTS).write_text("b/two.py\n")
    (tests / OF_NO_MODULE).write_text("test_whole.py: it is of all\n")
    assert wrong(package, tests) == []
    match change:
        case "new module":
            (package / "b" / "new.py").touch()
        case "new test":
            (tests / "test_new.py").touch()
        case "test written":
            (tests / "b" / "test_two.py").touch()
        case "module gone":
            (package / "b" / "two.py").unlink()
        case "test gone":
            (tests / "test_whole.py").unlink()
        case "reason gone":
            (tests / OF_NO_MODULE).write_text("test_whole.py\n")
        case "twice":
            (tests / WITHOUT_TESTS).write_text("b/two.py\nb/two.py\n")
    assert wrong(package, tests) == [told]
