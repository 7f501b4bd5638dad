"""Kits for devices, and what their check_device.py says when it is run as on a device."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from epctx import api
from tests.kit import projects
from tests.kit.projects import Project


def build(folder: Path) -> Project:
    """Two groups of plain ONNX, which any ONNX Runtime runs, with golden files; no processes."""
    project = projects.make(folder, {"one": ["a"], "two": ["b"]})
    project.section("defaults")["execution_providers"] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        project.build(golden=True)
    return project


def check(kit: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a kit's script; where no variables are needed, isolated from all but site-packages."""
    isolated = [] if variables else ["-I"]
    return subprocess.run(
        [sys.executable, *isolated, str(kit / "check_device.py"), "--runs", "3", *arguments],
        cwd=kit.parent,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def results(kit: Path) -> dict[str, Any]:
    """What the script wrote."""
    found: dict[str, Any] = json.loads((kit.parent / "device.json").read_bytes())
    return found


def sum_again(kit: Path) -> None:
    """Make the sums anew, as somebody does who changes a kit."""
    files = sorted(p for p in kit.rglob("*") if p.is_file() and p.name != "SHA256SUMS")
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(kit).as_posix()}\n"
        for path in files
    ]
    (kit / "SHA256SUMS").write_text("".join(lines))


def edit(kit: Path, **changes: Any) -> None:
    """Change the first set of a kit's record, and the first model of it; sums are made anew."""
    record = json.loads((kit / "kit.json").read_bytes())
    first = record["sets"][0]
    first["models"][0] |= changes.pop("model", {})
    first |= changes
    (kit / "kit.json").write_text(json.dumps(record))
    sum_again(kit)


def checked(project: Project) -> Path:
    """The kit of a project, and beside it what its script found here."""
    made = api.kit(project.folder / "dist" / "m", out=project.folder / "a.kit")
    ran = check(made.path)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return made.path
