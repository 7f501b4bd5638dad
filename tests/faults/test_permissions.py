"""Folders and files that the user may not write to or read: each is told by name, and undone.

As root, permissions mean nothing: the commands run without the capability that makes it so.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kit.projects import Project, make

ROOT = Path(__file__).parents[2]
_COMMANDS = """
import json, os, sys, traceback
from unittest import mock
from typer.testing import CliRunner
from epctx.cli.app import app
from tests.kit.inline import Inline
ends = []
with mock.patch("epctx.worker.pool.Worker", Inline):
    for folder, cache, command in json.loads(sys.argv[1]):
        os.chdir(folder)
        os.environ["EPCTX_CACHE_DIR"] = cache
        end = CliRunner().invoke(app, command)
        unexpected = end.exception if not isinstance(end.exception, SystemExit) else None
        trace = "".join(traceback.format_exception(unexpected)) if unexpected else ""
        ends.append((end.exit_code, end.output + trace))
print(json.dumps(ends))
"""


def without_privileges() -> list[str]:
    """What a command starts with, so that permissions hold for it."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]


class Case:
    """One thing that is forbidden. `forbid`: gets the project's folder, which has outputs."""

    def __init__(
        self, forbid: Callable[[Path], Path], mode: int, code: int, says: str, *command: str
    ) -> None:
        self.forbid = forbid
        self.mode = mode
        self.code = code
        self.says = says
        self.command = command or ("build", "m.yaml", "--jobs", "1")


READ_ONLY, NOTHING = 0o555, 0
CASES = {
    "outputs": Case(lambda p: p / "dist", READ_ONLY, 9, "dist"),
    "published groups": Case(lambda p: p / "dist/m/default", READ_ONLY, 9, "default/g"),
    "the lock's folder": Case(lambda p: p, READ_ONLY, 9, "m.lock.yaml"),
    "the cache": Case(lambda p: p / "../cache/v2/actions", READ_ONLY, 9, "the cache"),
    "a cache that cannot be looked at": Case(lambda p: p / "../cache", NOTHING, 9, "cache"),
    "the manifest": Case(lambda p: p / "m.yaml", NOTHING, 2, "not readable"),
    "the model": Case(lambda p: p / "a.onnx", NOTHING, 4, "a.onnx"),
    "its weights": Case(lambda p: p / "a.data", NOTHING, 4, "a.data"),
    "a binary, to verify": Case(
        lambda p: p / "dist/m/default/g/a_reference.bin", NOTHING, 7, "a_reference.bin",
        "verify", "dist/m",
    ),
    "a binary, to run": Case(
        lambda p: p / "dist/m/default/g/a_reference.bin", NOTHING, 7, "a_reference.bin",
        "run", "dist/m/default/g/a_ctx.onnx",
    ),
    "a model, to inspect": Case(
        lambda p: p / "dist/m/default/g/a_ctx.onnx", NOTHING, 2, "readable",
        "inspect", "dist/m/default/g/a_ctx.onnx",
    ),
    "where outputs are saved": Case(
        lambda p: p / "saved", READ_ONLY, 9, "saved/y.npz",
        "run", "dist/m/default/g/a_ctx.onnx", "--save", "saved/y.npz",
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str, bool]]:
    """Of each case: exit code, what was said, whether what was published is as it was."""
    base = tmp_path_factory.mktemp("permissions")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(base / "template" / "cache"))
        made = make(base / "template" / "p", {"g": ["a"]}, verify={"inputs": {"count": 1}})
        made.build()
    made.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    (made.folder / "saved").mkdir()
    jobs, forbidden = [], []
    for number, case in enumerate(CASES.values()):
        folder = base / str(number)
        shutil.copytree(base / "template", folder)
        path = case.forbid(folder / "p").resolve()
        forbidden.append((path, stat.S_IMODE(path.stat().st_mode)))
        path.chmod(case.mode)
        jobs.append((str(folder / "p"), str(folder / "cache"), case.command))
    try:
        run = subprocess.run(
            [*without_privileges(), sys.executable, "-c", _COMMANDS, json.dumps(jobs)],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        for path, mode in forbidden:
            path.chmod(mode)
    assert run.returncode == 0, run.stderr
    before = made.files()
    intact = [Project(Path(folder), {}).files() == before for folder, _, _ in jobs]
    told = json.loads(run.stdout.splitlines()[-1])
    return {
        name: (code, said, same)
        for name, (code, said), same in zip(CASES, told, intact, strict=True)
    }


@pytest.mark.needs("POSIX", "permissions are other things there")
@pytest.mark.parametrize("name", CASES)
def test_what_is_forbidden_is_told_by_name(
    ends: dict[str, tuple[int, str, bool]], name: str
) -> None:
    code, said, intact = ends[name]
    assert code == CASES[name].code, said
    assert CASES[name].says in said, said
    assert " -> " in said or "Try 'epctx" in said, said
    assert "Traceback" not in said and "a bug in epctx" not in said
    assert intact or name == "the lock's folder", said  # which is written last
