"""What others built, gathered where nothing is built: `build --from-cache`.

The shards share one cache folder here, as they share a store elsewhere. The host that gathers has
no onnxruntime-qnn, and another CPU: mocks, since no test changes its packages or its CPU.
"""

from __future__ import annotations

import copy
import json
import re
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from epctx import api
from epctx.errors import CompileError, EpctxError, ProviderUnavailable, UsageError
from epctx.providers.onnxruntime import host, packages
from tests.kit import projects
from tests.kit.compositions import PARTS
from tests.kit.compositions import project as composed
from tests.kit.projects import Project, make

QNN = {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}}


class Gathering(NamedTuple):
    """A project that two hosts built, each a group of it; `whole`: what one host makes of all."""

    project: Project
    reports: Path
    whole: dict[str, bytes]
    lock: bytes


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Gathering:
    folder = tmp_path_factory.mktemp("shards")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "cache"))
        projects.steady(patch)
        project = make(folder / "p", {"one": ["a"], "two": ["b"]})
        project.section("execution_providers")["qnn"] = QNN
        project.section("model_groups", "one")["execution_providers"] = ["qnn"]
        project.write()
        for group in ("one", "two"):
            api.build(project.manifest, out=folder / group, only=[f"{group}@default"])
            (folder / "reports" / group).mkdir(parents=True)
            shutil.copy(folder / group / "m.build.json", folder / "reports" / group)
        whole = copied(project, folder / "whole")
        patch.setenv("EPCTX_CACHE_DIR", str(folder / "another"))
        whole.build()
    return Gathering(project, folder / "reports", whole.files(), whole.lock.read_bytes())


@pytest.fixture
def gathering(shards: Gathering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Gathering:
    """The same, and a host that has neither the EP nor the CPU of those who built."""
    cache = shards.reports.parent / "cache"
    shutil.copytree(cache, tmp_path / "cache")
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    projects.steady(monkeypatch)
    monkeypatch.setattr(packages, "find", missing)
    monkeypatch.setattr(host, "cpu", another_cpu)
    project = copied(shards.project, tmp_path / "p")
    shutil.copytree(shards.reports, tmp_path / "reports")
    return shards._replace(project=project, reports=tmp_path / "reports")


def copied(project: Project, folder: Path) -> Project:
    shutil.copytree(project.folder, folder)
    return Project(folder=folder, document=copy.deepcopy(project.document))


def missing(distribution: str, module: str, *, install: str) -> packages.Package:
    raise ProviderUnavailable(f"the package {distribution} is not installed", remedy=install)


def another_cpu() -> host.Cpu:
    return host.Cpu(vendor="GenuineIntel", family="6", model="1", flags=("sse2",))


def gather(gathering: Gathering, **settings: Any) -> list[str]:
    """Gather; return what ran."""
    report = api.build(
        gathering.project.manifest,
        out=gathering.project.folder / "dist",
        from_cache=True,
        **settings,
    )
    return [
        f"{each.action} {each.subject}" for g in report.groups for each in g.actions if each.ran
    ]


def test_what_shards_built_is_what_one_host_builds(gathering: Gathering) -> None:
    """Files and lock byte for byte; nothing ran, numbers neither: they were compared over there."""
    assert gather(gathering, reports=gathering.reports) == []
    assert gathering.project.files() == gathering.whole
    assert gathering.project.lock.read_bytes() == gathering.lock


def test_a_lock_says_with_which_eps_too(gathering: Gathering) -> None:
    """What is verified is what can be without the EP; its numbers were compared by who built."""
    gathering.project.lock.write_bytes(gathering.lock)
    assert gather(gathering, locked=True) == ["verify one", "verify two"]
    assert gathering.project.files() == gathering.whole


def test_what_is_not_in_the_cache_is_told_and_nothing_is_published(gathering: Gathering) -> None:
    gathering.project.section("model_groups", "one")["embed_mode"] = 1
    gathering.project.write()
    with pytest.raises(CompileError, match="1 of 2 groups are not in the cache") as caught:
        gather(gathering, reports=gathering.reports)
    assert caught.value.code == "E0606"
    assert "one@default: compile of a" in str(caught.value)
    assert not gathering.project.published.exists()


@pytest.mark.parametrize("by", ["a report", "the lock"])
def test_keys_of_another_epctx_are_told(gathering: Gathering, tmp_path: Path, by: str) -> None:
    """As of one whose cache had another format: the lock has its keys, and no cache them."""
    shutil.rmtree(tmp_path / "cache" / "v2" / "actions")
    own = re.compile(rb"(epctx/compile\W+blake3:)[0-9a-f]{4}")
    gathering.project.lock.write_bytes(own.sub(rb"\1abcd", gathering.lock))
    report = gathering.reports / "one" / "m.build.json"
    report.write_bytes(own.sub(rb"\1abcd", report.read_bytes()))
    asked = {"reports": gathering.reports} if by == "a report" else {"locked": True}
    name = "reports" if by == "a report" else "m.lock.yaml"
    with pytest.raises(CompileError, match=f"keys in {name} are of other code of epctx") as caught:
        gather(gathering, **asked)
    assert caught.value.code == "E0606" and "with the same epctx" in caught.value.remedy
    assert not gathering.project.published.exists()


def test_a_lost_file_is_told_and_nothing_is_built(gathering: Gathering, tmp_path: Path) -> None:
    for path in (tmp_path / "cache" / "v2" / "objects").rglob("*"):
        if path.is_file():
            path.chmod(0o600)
            path.write_bytes(b"")
    with pytest.raises(EpctxError, match="is no longer in the cache"):
        gather(gathering, reports=gathering.reports)


def test_without_reports_this_hosts_eps_count(gathering: Gathering) -> None:
    with pytest.raises(ProviderUnavailable, match="onnxruntime-qnn is not installed"):
        gather(gathering)


def spoil(path: Path, what: str) -> None:
    report = json.loads(path.read_text(encoding="utf-8"))
    if what == "failed":
        report["lock"] = None
    elif what == "another":
        report["name"] = "n"
    else:
        entry = report["lock"]["execution_providers"]["QNNExecutionProvider"]
        entry["toolchain"]["onnxruntime-qnn"] = "2.8.0"
    path.write_text(json.dumps(report), encoding="utf-8")


@pytest.mark.parametrize(
    ("what", "told"),
    [
        ("failed", "is the report of a failed build"),
        ("differs", r"two jobs differ in \w+: one/m.build.json and three/m.build.json"),
    ],
)
def test_reports_that_nothing_can_be_gathered_of(
    gathering: Gathering, what: str, told: str
) -> None:
    shutil.copytree(gathering.reports / "one", gathering.reports / "three")
    spoil(gathering.reports / "three" / "m.build.json", what)
    with pytest.raises(UsageError, match=told):
        gather(gathering, reports=gathering.reports)


def test_a_folder_without_a_report_of_the_manifest(gathering: Gathering) -> None:
    for path in gathering.reports.rglob("*.json"):
        spoil(path, "another")
    with pytest.raises(UsageError, match="has no build report of 'm'"):
        gather(gathering, reports=gathering.reports)
    (gathering.reports / "m.build.json").write_text("{")
    with pytest.raises(UsageError, match="is not a build report"):
        gather(gathering, reports=gathering.reports)


def test_flags_that_contradict_each_other(gathering: Gathering) -> None:
    with pytest.raises(UsageError, match="--no-cache contradict"):
        gather(gathering, cache=False)
    with pytest.raises(UsageError, match="are only used with --from-cache"):
        api.build(gathering.project.manifest, reports=gathering.reports)


def test_a_composition_is_joined_where_its_parts_are_gathered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "cache"))
    project = composed(tmp_path / "p", {"whole": {"parts": PARTS}})
    groups = list(project.section("model_groups"))
    for group in groups:
        api.build(project.manifest, out=tmp_path / group, only=[group])
    project.build(from_cache=True)
    gathered = project.files()
    project.build(cache=False)
    assert gathered == project.files()
    assert any("whole/" in name for name in gathered)
