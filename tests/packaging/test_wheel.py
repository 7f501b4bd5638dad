"""The wheel: exactly these files, and the unit tests pass against it.

`make test` runs those of them against it that read the package's data files; `make soak` runs all.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
GOLDEN = Path(__file__).parent / "wheel-files.txt"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out)]
    subprocess.run([*command, str(ROOT)], check=True, capture_output=True)
    (path,) = out.glob("*.whl")
    return path


def test_the_wheel_has_exactly_these_files(wheel: Path) -> None:
    names = sorted(zipfile.ZipFile(wheel).namelist())
    if os.environ.get("EPCTX_UPDATE_GOLDEN"):
        GOLDEN.write_text("\n".join(names) + "\n", encoding="utf-8")
    assert names == GOLDEN.read_text(encoding="utf-8").splitlines()


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
