"""The wheel: exactly these files, and the unit tests pass against it.

`make test` runs those of them against it that read the package's data files; `make soak` runs all.
"""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from epctx import __version__

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent / "wheel-files.txt"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with what is released: the sdist, and the wheel that is built from it."""
    out = tmp_path_factory.mktemp("built")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    return out


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (path,) = built.glob("*.whl")
    return path


def test_an_index_takes_what_is_released(built: Path) -> None:
    command = [sys.executable, "-m", "twine", "check", "--strict", *map(str, built.iterdir())]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0 and checked.stdout.count("PASSED") == 2, checked.stdout


def test_the_source_has_what_a_wheel_is_made_of_and_no_tests(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        parts = {name.split("/", 1)[1].split("/")[0] for name in archive.getnames()}
    files = {"README.md", "CHANGELOG.md", "LICENSE", "PKG-INFO", "constraints.txt"}
    assert parts == {*files, "pyproject.toml", ".gitignore", "pipeline", "schemas", "docs"}


def test_links_of_the_long_description_are_absolute_and_lead_to_files_of_this_version(
    wheel: Path,
) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("/METADATA"))
        text = archive.read(name).decode()
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    ours = re.compile(rf"https://github\.com/epctx/epctx/(blob|raw)/v{__version__}/([^#]+)(#.*)?")
    found = [ours.fullmatch(link) for link in links if "/epctx/epctx/" in link]
    assert all(link.startswith(("https://", "#")) for link in links) and len(found) > 20
    assert all(match and (ROOT / match[2]).exists() for match in found)
    assert {m[1] for m in found if m and m[2].endswith(".png")} == {"raw"}
    assert "Project-URL: Changelog, https://github.com/epctx/epctx/" in text


def test_the_version_is_in_one_place(wheel: Path) -> None:
    assert wheel.name == f"epctx-{__version__}-py3-none-any.whl"
    assert "version" not in tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]


def test_the_wheel_has_every_module_and_exactly_these_other_files(wheel: Path) -> None:
    names = sorted(zipfile.ZipFile(wheel).namelist())
    others = [name for name in names if not name.endswith(".py")]
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        GOLDEN.write_text("\n".join(others) + "\n", encoding="utf-8")
    assert others == GOLDEN.read_text(encoding="utf-8").splitlines()
    modules = (path.relative_to(ROOT / "pipeline") for path in ROOT.glob("pipeline/epctx/**/*.py"))
    assert {*names} - {*others} == {module.as_posix() for module in modules}


READ_DATA_FILES = [
    f"tests/unit/{name}"
    for name in (
        "parsing/schema/test_apply.py",
        "commands/report/test_page.py::test_the_policy_names_this_script_and_this_style_and_nothing_else",
        *("commands/test_explain.py", "test_error_codes.py", "cli/test_schema.py"),
    )
]


@pytest.mark.parametrize(
    "tests",
    [
        pytest.param(READ_DATA_FILES, id="data files"),
        pytest.param(["tests/unit"], id="all", marks=pytest.mark.soak),
    ],
)
def test_the_unit_tests_pass_against_the_installed_wheel(
    wheel: Path, tmp_path: Path, tests: list[str]
) -> None:
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--quiet"]
    subprocess.run([*install, "--target", str(site), str(wheel)], check=True)
    environment = os.environ | {"PYTHONPATH": str(site)}
    environment.pop("PYTEST_XDIST_WORKER", None)
    where = [sys.executable, "-c", "import epctx; print(epctx.__file__)"]
    printed = subprocess.run(where, env=environment, capture_output=True, text=True, check=True)
    assert Path(printed.stdout.strip()).is_relative_to(site)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stdout[-4000:]
