"""The workflow of examples/ci/matrix.yml, its shell steps carried out as its jobs would.

Each job has a checkout, a home and a cache of its own; they share a store, a folder here. Runners
of several vendors and systems there are none: the labels are checked by GitHub's schema alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kit.projects import Project, make

ROOT = Path(__file__).parents[2]
WORKFLOW = ROOT / "examples" / "ci" / "matrix.yml"
BASH = shutil.which("bash") or ""
pytestmark = pytest.mark.needs("program bash", "GitHub's steps are in bash")


class Runner:
    """Carries out the jobs of the workflow.

    Args:
        folder: has the store, the keys, and what each job has.
        project: what a checkout has.
    """

    def __init__(self, folder: Path, project: Project) -> None:
        self.folder = folder
        self._project = project
        self._workflow: dict[str, Any] = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))

    def job(self, name: str, checkout: str, **variables: str) -> dict[str, str]:
        """Carry out a job in a new checkout; its outputs."""
        place = self.folder / checkout
        shutil.copytree(self._project.folder, place / "checkout")
        if name == "gather":
            shutil.copytree(self.folder / "shards", place / "checkout" / "shards")
        output = place / "output"
        output.touch()
        declared = self._workflow["env"] | self._workflow["jobs"][name].get("env", {})
        assert variables.keys() <= {*declared, "RUNNER_TEMP"}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        own = {
            "PATH": path,
            "HOME": str(place),
            "EPCTX_CACHE_DIR": str(place / "cache"),
            "MANIFEST": "m.yaml",
            "EPCTX_REMOTE_CACHE": (self.folder / "store").as_uri(),
            "EPCTX_CACHE_TRUST": str(self.folder / "ci-1.pem.pub"),
            "GITHUB_OUTPUT": str(output),
            "RUNNER_TEMP": str(place),
        }
        for step in self._workflow["jobs"][name]["steps"]:
            if "run" not in step or "pip install" in step["run"]:
                continue
            subprocess.run(
                [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
                cwd=place / "checkout",
                env=own | variables,
                check=True,
                capture_output=True,
                text=True,
            )
        lines = output.read_text(encoding="utf-8").splitlines()
        return {name: value for name, _, value in (line.partition("=") for line in lines)}


def test_the_jobs_build_each_its_groups_and_the_last_gathers_them(tmp_path: Path) -> None:
    """Byte for byte what one machine builds."""
    project = make(tmp_path / "project", {"one": ["a"], "two": ["b", "c"], "three": ["d"]})
    (tmp_path / "store").mkdir()
    program = [sys.executable, "-m", "epctx"]
    subprocess.run([*program, "cache", "keygen", str(tmp_path / "ci-1.pem")], check=True)
    runner = Runner(tmp_path, project)
    matrix = json.loads(runner.job("plan", "plan")["matrix"])["include"]
    assert [shard["name"] for shard in matrix] == ["one@default", "two@default", "three@default"]
    for number, shard in enumerate(matrix):
        key = (tmp_path / "ci-1.pem").read_text(encoding="utf-8")
        runner.job("build", f"build-{number}", ONLY=shard["only"], SIGNING_KEY=key)
        dist = tmp_path / f"build-{number}" / "checkout" / "dist"
        (tmp_path / "shards" / f"shard-{number}").mkdir(parents=True)
        shutil.copy(dist / "m.build.json", tmp_path / "shards" / f"shard-{number}")
    runner.job("gather", "gather")
    gathered = tmp_path / "gather" / "checkout"
    command = [*program, "build", str(project.manifest), "--no-cache", "--out", str(tmp_path / "d")]
    subprocess.run(command, check=True)
    assert (gathered / "m.lock.yaml").read_bytes() == project.lock.read_bytes()
    for path in (p for p in (tmp_path / "d" / "m").rglob("*") if p.is_file()):
        relative = path.relative_to(tmp_path / "d")
        assert (gathered / "dist" / relative).read_bytes() == path.read_bytes()
    report = json.loads((gathered / "dist" / "m.build.json").read_text(encoding="utf-8"))
    ran = [a for group in report["groups"] for a in group["actions"] if a["ran"]]
    assert ran == []
