"""A small project on disk, as users have them: models with data beside them, and a manifest."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import pytest
import yaml
from filelock import FileLock

from epctx import api
from epctx.engine.events import Event
from epctx.engine.report import BuildReport
from epctx.keys import Toolchain
from tests.kit.building import mlp

Settings: TypeAlias = dict[str, object]


@dataclass
class Project:
    """Models `a`, `b`, ... with weights beside them, one manifest, outputs in `dist`.

    Attributes:
        document: what the manifest says; `write` after a change.
        events: what the last build told.
    """

    folder: Path
    document: Settings
    events: list[Event] = field(default_factory=list)

    @property
    def manifest(self) -> Path:
        """The manifest's file."""
        return self.folder / "m.yaml"

    @property
    def lock(self) -> Path:
        """The lock's file."""
        return self.folder / "m.lock.yaml"

    @property
    def published(self) -> Path:
        """The folder of the groups of the default target."""
        return self.folder / "dist" / "m" / "default"

    def section(self, *path: str) -> Settings:
        """A mapping in the document."""
        found: object = self.document
        for step in path:
            assert isinstance(found, dict)
            found = found.setdefault(step, {})
        assert isinstance(found, dict)
        return found

    def write(self) -> None:
        """Write the manifest."""
        self.manifest.write_text(yaml.safe_dump(self.document, sort_keys=False), encoding="utf-8")

    def build(self, **options: Any) -> BuildReport:
        """Build it, in this process and its workers."""
        self.write()
        self.events.clear()
        arguments: dict[str, Any] = {"out": self.folder / "dist", "jobs": 2, **options}
        return api.build(self.manifest, listener=self.events.append, **arguments)

    def notices(self) -> list[str]:
        """What the last build told of the cache."""
        return [event.detail or "" for event in self.events if event.state == "notice"]

    def edit(self, model: str, change: Callable[[onnx.ModelProto], None]) -> None:
        """Change a model, its weights left where they are."""
        path = self.folder / f"{model}.onnx"
        proto = onnx.load(path, load_external_data=False)
        change(proto)
        path.write_bytes(proto.SerializeToString())

    def files(self) -> dict[str, bytes]:
        """Every published file."""
        return {
            path.relative_to(self.published).as_posix(): path.read_bytes()
            for path in sorted(self.published.rglob("*"))
            if path.is_file()
        }


def make(folder: Path, groups: Mapping[str, list[str]], **settings: Any) -> Project:
    """A project with these groups of models, each model another; settings are for all groups.

    Models of one group that are several share a context.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for models in groups.values() for name in models]
    for seed, name in enumerate(dict.fromkeys(names)):
        onnx.save(
            mlp(seed=seed, width=32),
            folder / f"{name}.onnx",
            save_as_external_data=True,
            location=f"{name}.data",
            size_threshold=1024,
        )
    project = Project(folder=folder, document=document(groups, **settings))
    project.write()
    return project


def document(groups: Mapping[str, list[str]], **settings: Any) -> Settings:
    """What the manifest of such a project says."""
    names = [name for models in groups.values() for name in models]
    return {
        "schema_version": 1,
        "name": "m",
        "models": {name: {"path": f"{name}.onnx"} for name in names},
        "execution_providers": {"ref": {"provider": "ReferenceExecutionProvider"}},
        "defaults": {"execution_providers": ["ref"], **settings},
        "model_groups": {
            name: {
                "models": models,
                **({"sharing_groups": {"all": models}} if len(models) > 1 else {}),
            }
            for name, models in groups.items()
        },
    }


TWO_GROUPS: Mapping[str, list[str]] = {"one": ["a"], "two": ["b", "c"]}


def built(folder: Path) -> BuildReport:
    """Build a project of TWO_GROUPS in `project` of the folder, with a cache of its own beside."""
    made = make(folder / "project", TWO_GROUPS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        steady(patch)
        return made.build()


def copied(source: Path, folder: Path, patch: pytest.MonkeyPatch) -> Project:
    """A copy of what `built` made, which remembers nothing of paths, and has all results."""
    for name in ("project", "cache"):
        shutil.copytree(source / name, folder / name)
    patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
    steady(patch)
    return Project(folder=folder / "project", document=document(TWO_GROUPS))


def steady(patch: pytest.MonkeyPatch) -> None:
    """As if epctx's own sources never changed: they are edited while tests run."""
    patch.setattr(Toolchain, "own", lambda self, patterns: f"blake3:{'0' * 64}")


def ran(report: BuildReport) -> list[tuple[str, str]]:
    """The actions that were carried out, with their subjects, sorted."""
    return sorted((a.action, a.subject) for g in report.groups for a in g.actions if a.ran)


def states(report: BuildReport) -> dict[str, str]:
    """What became of each group."""
    return {group.group: group.state for group in report.groups}


def stats(folder: Path) -> dict[str, tuple[int, int]]:
    """Of everything below a folder, which file it is and when it was written."""
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_ino, path.stat().st_mtime_ns)
        for path in sorted(folder.rglob("*"))
    }


def flip(path: Path, position: int = -5) -> None:
    """Flip a bit in a file, which keeps its size and its time."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[max(position, -len(content))] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def actions(project: Project) -> list[tuple[str, str]]:
    """The actions that the last build carried out, by their keys."""
    report = json.loads((project.folder / "dist" / "m.build.json").read_text(encoding="utf-8"))
    return [(a["action"], a["key"]) for g in report["groups"] for a in g["actions"] if a["ran"]]


def builds_that_wait(
    project: Project, start: Callable[[], subprocess.Popen[str]]
) -> list[subprocess.Popen[str]]:
    """Three builds of one output that was held by somebody else until each had said that it waits.

    Left to themselves, one may begin when the others have ended.
    """
    (project.folder / "dist").mkdir()
    with FileLock(project.folder / "dist" / ".m.lock"):
        processes = [start() for _ in range(3)]
        for process in processes:
            assert process.stderr is not None
            said = iter(process.stderr.readline, "")
            assert any("waiting, another command uses the output" in line for line in said)
    return processes
