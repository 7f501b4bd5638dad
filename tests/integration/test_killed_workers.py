"""SIGKILL of a worker in every stage, with --keep-going: the rest is built, and told right."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from epctx.cache import Cache, locate
from epctx.cache.maintenance import check
from tests.kit.command_line import FAULTY, epctx
from tests.kit.projects import Project, make

pytestmark = pytest.mark.needs("POSIX", "needs SIGKILL")
KILLING = Path(__file__).parents[1] / "faults" / "killing"
DOING = {
    "load": "loading model bad_load",
    "optimize": "optimizing model bad_optimize",
    "partition": "partitioning model bad_partition",
    "compile": "compiling model bad_compile",
    "dump": "writing the session group",
    "verify": "running",
}


def project(folder: Path, provider: str) -> Project:
    """A group for each stage, between groups that are sound; one of them shares."""
    bad = {f"bad_{stage}": [f"bad_{stage}"] for stage in DOING}
    made = make(
        folder, {"first": ["a", "b"], **bad, "last": ["c"]}, verify={"inputs": {"count": 1}}
    )
    made.section("execution_providers", "ref")["provider"] = provider
    made.write()
    return made


def build(made: Project, *folders: Path) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join(map(str, folders))
    options = ("--keep-going", "--jobs", "2")
    return epctx("build", "m.yaml", *options, cwd=made.folder, PYTHONPATH=path)


def groups(made: Project) -> dict[str, dict[str, object]]:
    path = made.folder / "dist" / "m.build.json"
    return {g["group"]: g for g in json.loads(path.read_text(encoding="utf-8"))["groups"]}


@pytest.mark.parametrize(
    "provider",
    [
        "ReferenceExecutionProvider",  # a worker takes many groups
        pytest.param("FaultyExecutionProvider", marks=pytest.mark.soak),  # one for each group
    ],
)
def test_other_groups_are_built_and_the_report_is_right(tmp_path: Path, provider: str) -> None:
    made = project(tmp_path / "p", provider)
    killed = build(made, KILLING, FAULTY)
    assert killed.returncode == 6, killed.stderr
    found = groups(made)
    assert list(found) == ["first", *(f"bad_{stage}" for stage in DOING), "last"]
    for name in ("first", "last"):
        assert found[name]["state"] == "built" and found[name]["failure"] is None
    for stage, doing in DOING.items():
        group = found[f"bad_{stage}"]
        assert group["state"] == "failed" and group["folder"] is None and not group["files"]
        failure = group["failure"]
        assert isinstance(failure, dict) and failure["exit_code"] == 6
        assert f"crashed while {doing}" in failure["what"], failure
        assert "SIGKILL" in failure["what"] and "fewer --jobs" in failure["remedy"]
    assert "Traceback" not in killed.stderr and "a bug in epctx" not in killed.stderr
    assert sorted(path.name for path in made.published.iterdir()) == ["first", "last"]
    dist = sorted(path.name for path in (made.folder / "dist").iterdir())
    there = {".m.lock", ".m.record.json", "m", "m.build.json"}
    assert there <= set(dist) <= {*there, "m.logs"}
    assert not made.lock.exists()

    checked = check(Cache(locate(), print))
    assert (checked.corrupt, checked.incomplete) == ((), 0)
    before = made.files()
    again = build(made, FAULTY)
    assert again.returncode == 0, again.stderr
    states = {name: group["state"] for name, group in groups(made).items()}
    assert [name for name, state in states.items() if state == "up to date"] == ["first", "last"]
    assert before.items() <= made.files().items()


@pytest.mark.parametrize("command", ["build", "plan"])
def test_the_log_that_a_message_names_is_there(command: str, tmp_path: Path) -> None:
    made = make(tmp_path / "p", {"all": ["abort_load"]})
    options = ["--partition"] if command == "plan" else []
    ended = epctx(command, "m.yaml", *options, cwd=made.folder, PYTHONPATH=str(KILLING))
    assert ended.returncode == 6 and "SIGABRT" in ended.stderr
    (named,) = re.findall(r"see the whole log: (.+\.log)", ended.stderr)
    log = made.folder / named
    assert log.read_text(encoding="utf-8").startswith("the last words\n")
    shutil.rmtree(log.parent)
