"""What CI systems are given: workflows by GitHub's schema, and what their steps do, done here."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import yaml
from junitparser import JUnitXml

from epctx.cli.app import COMMANDS
from tests.kit.command_line import epctx
from tests.kit.projects import Project, make

ROOT = Path(__file__).parents[2]
BUILD = ROOT / ".github" / "workflows" / "build.yml"
WORKFLOWS = [
    *sorted((ROOT / ".github" / "workflows").glob("*.yml")),
    ROOT / "examples/ci/matrix.yml",
    ROOT / "examples/ci/release.yml",
]
ACTION = ROOT / "action.yml"
BASH = shutil.which("bash")


def steps(workflow: Path) -> list[dict[str, Any]]:
    document = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    jobs = [document["runs"]] if "runs" in document else document["jobs"].values()
    return [step for job in jobs for step in job.get("steps", ())]


def check(
    workflow: Path, schema: str = "vendor.github-workflows"
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema]
    return subprocess.run([*command, str(workflow)], capture_output=True, text=True)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_is_one_by_the_schema(workflow: Path) -> None:
    checked = check(workflow)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("workflow", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_actions_of_others_are_named_by_their_commit(workflow: Path) -> None:
    """A tag can be moved. `your-organization/epctx` is whoever copies the example."""
    used = re.findall(
        r"^\s*-? *uses: (\S+)(.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert used
    for action, comment in used:
        if not action.startswith("your-organization/epctx/"):
            assert re.fullmatch(r"actions/[a-z/-]+@[0-9a-f]{40}", action), action
            assert re.fullmatch(r" # v[0-9]+\.[0-9]+\.[0-9]+", comment), action


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_may_read_at_most_but_for_the_job_that_publishes(workflow: Path) -> None:
    read = yaml.safe_load(workflow.read_text(encoding="utf-8"))
    assert read["permissions"] in ({}, {"contents": "read"})
    given = {name: job.get("permissions") for name, job in read["jobs"].items()}
    allowed = [None, {"contents": "read"}]
    assert [n for n, rights in given.items() if rights not in allowed] in ([], ["publish"])
    trusted = {"contents": "read", "id-token": "write", "attestations": "write"}
    assert given.get("publish") in (None, {"contents": "write"}, trusted)


@pytest.mark.parametrize(("workflow", "count"), [(BUILD, 2), (ACTION, 1)], ids=["job", "action"])
def test_caches_are_restored_for_everyone_and_saved_on_the_default_branch(
    workflow: Path, count: int
) -> None:
    """A change from a fork, or a release, fills no cache that others build from."""
    caches = [step for step in steps(workflow) if "cache" in step.get("uses", "")]
    saved = [step for step in caches if "/save@" in step["uses"]]
    restored = [step for step in caches if "/restore@" in step["uses"]]
    assert caches == [*restored, *saved] and len(saved) == len(restored) == count
    branch = "github.ref_name == github.event.repository.default_branch"
    for step in saved:
        assert step["if"].startswith(f"github.ref_type == 'branch' && {branch}")
    assert not any("if" in step for step in restored)
    assert {s["with"]["path"] for s in saved} == {s["with"]["path"] for s in restored}
    names = [step.get("name", step.get("uses")) for step in steps(workflow)]
    assert names.index("Bound the cache") < names.index(saved[0]["uses"])


def told(name: str, folder: Path, **environment: str) -> dict[str, str]:
    """What a step of the workflow leaves in the environment of those after it."""
    assert BASH is not None
    (step,) = (step for step in steps(BUILD) if step.get("name") == name)
    left = folder / "left"
    variables = {"GITHUB_ENV": str(left), "RUNNER_TEMP": str(folder), **environment}
    subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env=os.environ | variables,
        check=True,
    )
    lines = left.read_text(encoding="utf-8").splitlines() if left.exists() else []
    return dict(line.split("=", 1) for line in lines)


def test_the_shared_cache_is_read_by_all_and_filled_by_the_default_branch() -> None:
    """Not by a release, nor by what runs for a change with the rights of the default branch."""
    conditions = {step.get("name"): step.get("if", "") for step in steps(BUILD)}
    branch = "github.ref_type == 'branch'"
    assert conditions["Shared cache"] == f"inputs.remote-cache != '' && {branch}"
    default = "github.ref_name == github.event.repository.default_branch"
    events = (
        """contains(fromJSON('["push", "schedule", "workflow_dispatch"]'), github.event_name)"""
    )
    assert (
        conditions["Signing key"]
        == f"inputs.remote-cache != '' && {branch} && {default} && {events}"
    )
    names = [step.get("name") for step in steps(BUILD)]
    assert names.index("Shared cache") < names.index("Signing key") < names.index("Build")


@pytest.mark.needs("program bash", "the steps are for it")
def test_the_steps_of_the_shared_cache(tmp_path: Path) -> None:
    given = {"REMOTE_CACHE": "s3://b/p", "TRUST": "keys.pub"}
    lines = "AWS_ACCESS_KEY_ID=a=b\nPATH=/planted\nAWS_REGION=x\nLD_PRELOAD=y"
    assert told("Shared cache", tmp_path, **given, CACHE_ENVIRONMENT=lines) == {
        "EPCTX_REMOTE_CACHE": "s3://b/p",
        "EPCTX_CACHE_TRUST": "keys.pub",
        "AWS_ACCESS_KEY_ID": "a=b",
        "AWS_REGION": "x",
    }
    (tmp_path / "left").unlink()
    assert len(told("Shared cache", tmp_path, **given, CACHE_ENVIRONMENT="")) == 2
    (tmp_path / "left").unlink()
    assert told("Signing key", tmp_path, SIGNING_KEY="") == {}
    named = told("Signing key", tmp_path, SIGNING_KEY="the\nkey")["EPCTX_CACHE_SIGNING_KEY"]
    assert Path(named).read_text() == "the\nkey\n"
    assert os.name != "posix" or Path(named).stat().st_mode & 0o777 == 0o600


def test_ci_installs_nothing_whose_digest_is_not_known() -> None:
    workflow = ROOT / ".github" / "workflows" / "ci.yml"
    job = yaml.safe_load(workflow.read_text(encoding="utf-8"))["jobs"]["test"]
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [".ci/install", ".ci/run", "make docs"]
    install = (ROOT / ".ci" / "install").read_text(encoding="utf-8")
    installs = [line for line in install.splitlines() if "pip install" in line]
    assert len(installs) == 2
    assert "--require-hashes --requirement .ci/requirements.txt" in installs[0]
    assert "--no-deps --no-build-isolation --editable ." in installs[1]


@pytest.mark.parametrize("workflow", [*WORKFLOWS, ACTION], ids=lambda path: path.name)
def test_no_expression_reaches_the_shell(workflow: Path) -> None:
    assert not [step["run"] for step in steps(workflow) if "${{" in step.get("run", "")]


def test_every_command_of_the_steps_is_one_of_ours() -> None:
    called = re.findall(r"\bepctx ([a-z]+)\b", "\n".join(s.get("run", "") for s in steps(BUILD)))
    assert set(called) >= {"validate", "build", "verify", "package", "report"}
    assert set(called) <= set(COMMANDS)


def carry_out(
    project: Project, *, default_branch: bool = False, **inputs: object
) -> dict[str, int]:
    """The shell steps of the workflow in a checkout; exit codes by name.

    Installing is left out: what is installed is what is tested. A step without a condition of its
    own is not carried out after one that failed, as on GitHub.
    """
    declared = yaml.safe_load(BUILD.read_text(encoding="utf-8"))
    given = {
        key: inputs.get(key, spec.get("default", ""))
        for key, spec in declared[True]["workflow_call"][
            "inputs"
        ].items()  # `on` is true in YAML 1.1
    }
    own: dict[str, str] = {
        "MANIFEST": str(given["manifest"]),
        "LOCKED": "--locked" if given["locked"] else "",
        "CACHE_SIZE": str(given["cache-size"]),
        "EPCTX_CACHE_DIR": str(project.folder / ".epctx-cache"),
    }
    assert own.keys() <= declared["jobs"]["build"]["env"].keys()
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    codes: dict[str, int] = {}
    for step in steps(BUILD):
        if "run" not in step or step["name"] == "Install epctx":
            continue
        condition = str(step.get("if", ""))
        if condition == "inputs.package" and not given["package"]:
            continue
        if "inputs.remote-cache" in condition and not given["remote-cache"]:
            continue
        if "default_branch" in condition and not default_branch:
            continue
        if any(codes.values()) and "!cancelled()" not in condition:
            continue
        assert BASH is not None
        ran = subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=project.folder,
            env=os.environ | own | {"PATH": path},
            capture_output=True,
            text=True,
        )
        codes[step["name"]] = ran.returncode
    return codes


@pytest.fixture
def project(tmp_path: Path, jobs_inline: None) -> Project:
    made = make(tmp_path, {"g": ["a"]})
    made.build()
    shutil.rmtree(tmp_path / "dist")
    return made


needs_bash = pytest.mark.needs("program bash", "GitHub's steps are in bash")


@needs_bash
def test_the_steps_build_what_is_locked_verify_package_and_report_it(project: Project) -> None:
    codes = carry_out(project, manifest="m.yaml", package=True)
    assert codes == {"Validate": 0, "Build": 0, "Verify": 0, "Package": 0, "Report": 0}
    dist = project.folder / "dist"
    assert (dist / "m.ortpackage" / "manifest.json").is_file()
    assert JUnitXml.fromfile(str(dist / "verify.xml")).failures == 0
    assert (dist / "m.report.html").stat().st_size > 10_000
    assert (dist / "m" / "default" / "g" / "a_ctx.onnx").is_file()


@needs_bash
def test_the_action_builds_verifies_packages_and_tells(project: Project) -> None:
    """Each step with the environment that it declares, its expressions filled in."""
    declared = yaml.safe_load(ACTION.read_text(encoding="utf-8"))
    given = {name: spec.get("default", "") for name, spec in declared["inputs"].items()}
    given |= {"manifest": "m.yaml", "package": "true"}
    known = {f"inputs.{name}": value for name, value in given.items()}
    known["github.workspace"] = str(project.folder)
    known["inputs.locked == 'true' && '--locked' || ''"] = "--locked"
    summary = project.folder / "summary.md"
    ours = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
    ours["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    ran = []
    for step in (s for s in steps(ACTION) if "run" in s and s["name"] != "Install epctx"):
        own = {
            name: re.sub(r"\$\{\{ (.+?) \}\}", lambda found: known[found[1]], value)
            for name, value in step["env"].items()
        }
        assert BASH is not None and step["shell"] == "bash"
        subprocess.run(
            [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
            cwd=project.folder,
            env=os.environ | ours | own,
            check=True,
        )
        ran.append(step["name"])
    assert ran == ["Build", "Package", "Bound the cache"]
    dist = project.folder / given["out"]
    assert (dist / "m.ortpackage" / "manifest.json").is_file() and (dist / "verify.xml").is_file()
    told = summary.read_text(encoding="utf-8")
    assert "### m\n" in told and "### epctx verify\n" in told


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=me@example.com", *arguments]
    return subprocess.run(
        command, cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


@pytest.mark.needs("program ssh-keygen", "git signs and verifies with it")
@pytest.mark.parametrize("signer", ["trusted", "other", "nobody"])
def test_a_release_is_of_a_tag_that_a_known_key_signed(tmp_path: Path, signer: str) -> None:
    for name in ("trusted", "other"):
        generate = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)]
        subprocess.run(generate, check=True)
    repository = tmp_path / "r"
    git(tmp_path, "init", "-q", "r")
    git(repository, "commit", "-q", "--allow-empty", "-m", "x")
    key = f"user.signingkey={tmp_path / signer}"
    signs = [] if signer == "nobody" else ["-c", "gpg.format=ssh", "-c", key]
    git(repository, *signs, "tag", "-m", "v1", "-s" if signs else "-a", "v1")
    git(repository, "remote", "add", "origin", str(repository))
    public = (tmp_path / "trusted.pub").read_text(encoding="utf-8")
    release = ROOT / ".github" / "workflows" / "release.yml"
    (step,) = (step for step in steps(release) if step.get("name") == "Signed tag")
    variables = {"TAG": "v1", "SIGNERS": f"me@example.com {public}", "HOME": str(tmp_path)}
    assert BASH is not None
    ran = subprocess.run(
        [BASH, "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=repository,
        env=os.environ | variables,
        capture_output=True,
        text=True,
    )
    assert (ran.returncode == 0) == (signer == "trusted"), ran.stderr


@needs_bash
def test_the_default_branch_keeps_of_the_cache_what_the_lock_reaches(project: Project) -> None:
    with mock.patch.dict(os.environ, EPCTX_CACHE_DIR=str(project.folder / ".epctx-cache")):
        project.build()
    project.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    assert not carry_out(project, manifest="m.yaml", locked=False).get("Bound the cache")
    objects = project.folder / ".epctx-cache" / "v2" / "objects"
    before = sum(path.is_file() for path in objects.rglob("*"))
    codes = carry_out(
        project, default_branch=True, manifest="m.yaml", locked=False, **{"cache-size": "1"}
    )
    assert codes["Bound the cache"] == 0
    assert 0 < sum(path.is_file() for path in objects.rglob("*")) < before


@needs_bash
def test_a_build_that_is_not_what_the_lock_says_is_not_kept(project: Project) -> None:
    project.edit("a", lambda model: setattr(model.graph.node[-1], "op_type", "Sigmoid"))
    codes = carry_out(project, manifest="m.yaml")
    assert codes == {"Validate": 0, "Build": 8, "Report": 0}
    assert not (project.folder / "dist" / "m" / "default").exists()
    assert carry_out(project, manifest="m.yaml", locked=False)["Build"] == 0


@needs_bash
def test_an_input_is_no_command(project: Project) -> None:
    name = '$(touch pwned)"; touch pwned; ".yaml'
    project.manifest.rename(project.folder / name)
    project.lock.rename(project.folder / (name.removesuffix(".yaml") + ".lock.yaml"))
    assert carry_out(project, manifest=name)["Verify"] == 0
    assert not (project.folder / "pwned").exists()


@pytest.mark.parametrize("number", [0, 1])
def test_the_hooks_of_pre_commit_check_manifests_alone(project: Project, number: int) -> None:
    """pre-commit hands over every YAML file of a repository, whatever it is."""
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    hook = hooks[number]
    assert (hook["types"], hook["language"]) == (["yaml"], ["python", "system"][number])
    program, *arguments = hook["entry"].split()
    assert program == "epctx"
    project.write()
    other = project.folder / "docs" / "compose.yaml"
    other.parent.mkdir()
    other.write_text("schema_version: 3\nservices: {}\n", encoding="utf-8")
    command = (*arguments, other, project.lock, project.manifest)
    assert epctx(*command, cwd=project.folder).returncode == 0
    project.document["models"] = {}
    project.write()
    assert epctx(*command, cwd=project.folder).returncode == 3


def test_the_hooks_of_our_own_run_what_lint_runs() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text("utf-8"))["repos"]
    hooks = {hook["entry"] for hook in repository["hooks"]}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    (lint,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    steps = {line.strip().replace("$(BIN)", ".venv/bin") for line in lint.splitlines()}
    assert hooks <= {step.removesuffix(" .") for step in steps}
    tools = {hook.split()[0] for hook in hooks}
    assert all(any(tool in step for tool in tools) for step in steps), "a step without a hook"
