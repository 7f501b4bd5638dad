"""QNN and OpenVINO from the cache: keys, recordings of generating sessions, the lock's CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from epctx import lockfile
from epctx.cache import locate
from epctx.providers.onnxruntime import host
from epctx.verification.findings import POLICIES, FolderReport
from epctx.worker.process import Worker
from tests.kit.projects import Project, make, ran, states, steady

EPS = ("QNNExecutionProvider", "OpenVINOExecutionProvider")


@pytest.fixture(params=[pytest.param(ep, marks=pytest.mark.needs_device(ep)) for ep in EPS])
def project(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Project:
    """A project of one model, built by a real EP."""
    steady(monkeypatch)
    project = make(tmp_path, {"one": ["a"]})
    options = {"soc_model": "60"} if request.param.startswith("QNN") else {}
    project.section("execution_providers")["ref"] = {"provider": request.param, "options": options}
    report = project.build()
    assert ran(report) == [("compile", "a"), ("optimize", "a"), ("verify", "one")]
    return project


def sessions(found: FolderReport | None) -> set[str]:
    """Whose outputs were compared."""
    assert found is not None
    return {each.sessions for each in found.numbers}


def test_what_this_host_loads_is_run_once_and_nothing_of_it_needs_a_compile(
    project: Project,
) -> None:
    before = project.files()
    assert states(project.build()) == {"one": "up to date"}
    project.section("defaults", "verify", "tolerance")["max_abs"] = 0.5
    report = project.build()
    assert ran(report) == [("verify", "one")]
    assert sessions(report.groups[0].verify) == {"files"}
    project.section("defaults", "verify", "inputs")["seed"] = 3
    report = project.build()
    assert ran(report) == [("verify", "one")], "other inputs are run on the same files"
    assert sessions(report.groups[0].verify) == {"files"}
    assert ran(project.build()) == []
    project.section("defaults", "verify", "inputs")["seed"] = 4
    assert ran(project.build(verify=False)) == [("verify", "one")]
    assert project.files() == before


def test_recordings_let_tolerances_change_without_a_compile(project: Project) -> None:
    before = project.files()
    project.section("defaults", "verify")["numbers"] = "generating"
    report = project.build()
    assert ran(report) == [("compile", "a"), ("verify", "one")], "its sessions were not run"
    assert sessions(report.groups[0].verify) == {"generating"}
    project.section("defaults", "verify", "tolerance")["max_abs"] = 0.5
    report = project.build()
    assert ran(report) == [("verify", "one")]
    assert sessions(report.groups[0].verify) == {"generating"}
    # Other inputs: only a session that compiles can be run on them.
    project.section("defaults", "verify", "inputs")["seed"] = 3
    report = project.build()
    assert ran(report) == [("compile", "a"), ("verify", "one")]
    assert sessions(report.groups[0].verify) == {"generating"}
    assert ran(project.build()) == []
    # Under the other policy none of that is believed.
    project.section("defaults", "verify")["numbers"] = "full"
    report = project.build()
    assert ran(report) == [("verify", "one")]
    assert sessions(report.groups[0].verify) == {"files"}
    # Without numbers there is nothing to record.
    project.section("defaults", "verify", "inputs")["seed"] = 4
    assert ran(project.build(verify=False)) == [("verify", "one")]
    assert project.files() == before


def test_the_lock_says_which_cpu_it_was_made_on(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    locked = lockfile.read(project.lock)
    (name,) = locked.cpus
    here = host.cpu()
    assert locked.cpus[name].vendor == here.vendor
    assert locked.cpus[name].flags == tuple(sorted(here.flags))
    assert locked.groups["default/one"].session_groups["a"].cpu == name
    depends = locked.execution_providers[next(iter(locked.execution_providers))].host
    monkeypatch.setattr(
        host, "cpu", lambda: replace(here, model="99", flags=(*here.flags, "avx512_new"))
    )
    report = project.build(verify=False)
    if depends:
        # OpenVINO compiles for the CPU's instructions: another CPU, another key.
        assert ("compile", "a") in ran(report)
    else:
        # The cache has it from another CPU: that is where it was made, whoever uses it.
        assert ("compile", "a") not in ran(report)
        assert lockfile.read(project.lock).cpus == locked.cpus


def test_one_process_reads_compiles_and_checks_and_leaves_no_trace_of_that_in_the_bytes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session group's worker optimizes too: that its model came from the cache changes nothing.

    Only numbers are checked in a process of their own.
    """
    before = project.files()
    started: list[Path] = []
    start = Worker.__init__

    def counted(worker: Worker, folder: Path, *others: Any, **named: Any) -> None:
        started.append(folder)
        start(worker, folder, *others, **named)

    monkeypatch.setattr(Worker, "__init__", counted)
    report = project.build(cache=False, verify=False)
    assert len(started) == 1
    assert project.files() == before
    checks = report.groups[0].verify
    assert checks is not None
    assert {finding.policy for finding in checks.findings} == set(POLICIES)
    assert checks.unrun == "numbers not run: --no-verify"
    assert all(finding.outcome != "fail" for finding in checks.findings)
    for record in (locate().root / "actions").rglob("*"):
        if record.is_file() and b'"kind":"compile"' in record.read_bytes():
            record.unlink()
    started.clear()
    assert ("optimize", "a") not in ran(project.build())
    assert len(started) == 1, "what the same bytes compute is known"
    assert project.files() == before
