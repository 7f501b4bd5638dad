"""`epctx reproduce`: an EP that depends on what is varied is caught, another is not."""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import onnx
import psutil
import pytest
import yaml

import epctx
from epctx.commands.reproduce.result import VARIATIONS
from epctx.engine import plan as planning
from epctx.engine.lock.locked_mode import unstable_eps
from epctx.errors import LockError
from epctx.providers.reference import ReferenceExecutionProvider
from scripts import quickstart_models
from tests.kit import command_line
from tests.kit.building import mlp
from tests.kit.command_line import PROGRAM, VARYING
from tests.kit.projects import make

MANIFESTS = Path(__file__).parents[2] / "manifests"


def write(folder: Path, *depends: str) -> Path:
    """A manifest with a group for each thing to depend on, called like that."""
    folder.mkdir(exist_ok=True)
    onnx.save(mlp(width=8, layers=1), folder / "m.onnx")
    (folder / "files").mkdir()
    for number in range(20):
        (folder / "files" / f"f{number}").touch()
    document = {
        "schema_version": 1,
        "name": "m",
        "models": {"m": {"path": "m.onnx"}},
        "execution_providers": {
            name: {
                "provider": "VaryingExecutionProvider",
                "options": {"depends": name, "folder": "files"},
            }
            for name in depends
        },
        "model_groups": {
            name: {"models": ["m"], "execution_providers": [name], "verify": {"numbers": "off"}}
            for name in depends
        },
    }
    path = folder / "m.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")
    return path


def reproduce(manifest: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return command_line.epctx(
        "reproduce",
        manifest.name,
        *arguments,
        cwd=manifest.parent,
        PYTHONPATH=str(VARYING),
    )


def found(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.stdout, run.stderr
    found: dict[str, Any] = json.loads(run.stdout)
    return found


def states(document: dict[str, Any]) -> dict[str, set[str]]:
    """The states of each group's files."""
    told: dict[str, set[str]] = {}
    for file in document["files"]:
        told.setdefault(file["file"].split("/")[1], set()).add(file["state"])
    return told


@pytest.fixture(scope="module")
def varied(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """What is told of groups each of which depends on another variation; files left behind."""
    folder = tmp_path_factory.mktemp("varied")
    manifest = write(folder, "nothing", *VARIATIONS)
    before = sorted(p.name for p in folder.iterdir())
    run = reproduce(manifest, "--format", "json", "--jobs", "2")
    assert run.returncode == 8, run.stderr
    left = sorted(p.name for p in folder.iterdir())
    return found(run), [name for name in left if name not in before]


@pytest.mark.parametrize("name", VARIATIONS)
def test_an_ep_that_depends_on_it_is_caught(
    varied: tuple[dict[str, Any], list[str]], name: str
) -> None:
    document, _ = varied
    (variation,) = (each for each in document["variations"] if each["name"] == name)
    told = states(document)[name]
    if variation["obstacle"] is None:
        assert "payload differs" in told
        assert variation["first"] != variation["second"]
    else:
        assert told == {"identical"}
        assert name in ("time", "file-order", "user", "host-name", "cores")


def test_what_depends_on_nothing_is_identical(varied: tuple[dict[str, Any], list[str]]) -> None:
    document, left = varied
    assert states(document)["nothing"] == {"identical"}
    assert not document["reproducible"]
    assert left == []  # no output, no lock


def test_the_first_difference_is_told_down_to_the_attribute(
    varied: tuple[dict[str, Any], list[str]],
) -> None:
    document, _ = varied
    told = {file["file"]: file["difference"] for file in document["files"]}
    assert "(EPContext): attribute ep_sdk_version: 1." in told["default/umask/m_ctx.onnx"]
    assert told["default/umask/m_reference.bin"].startswith("byte ")
    assert told["default/umask/SHA256SUMS"] == "sums of m_ctx.onnx, m_reference.bin"
    assert told["default/nothing/m_ctx.onnx"] is None
    (lock,) = (d for d in document["differences"] if d["where"] == "default/umask/m_ctx.onnx")
    assert lock["kind"] == "output"


def test_the_cause_is_found(tmp_path: Path) -> None:
    manifest = write(tmp_path / "p", "umask", "nothing")
    out = tmp_path / "kept"
    run = reproduce(
        manifest, "--vary", "umask", "--vary", "home", "--find-cause", "--out", str(out)
    )
    assert run.returncode == 8, run.stderr
    assert "caused by: umask\n" in run.stdout
    assert "varied: home, umask\n" in run.stdout
    told = "NOT reproducible [E0805]: 3 identical, 1 metadata differs, 2 payload differs"
    assert told in run.stdout
    assert sorted(p.name for p in out.iterdir()) == ["first", "second"]
    kept = [
        (out / each / "m.lock.yaml").read_text(encoding="utf-8") for each in ("first", "second")
    ]
    assert kept[0] != kept[1]


@pytest.mark.soak
def test_chance_is_no_variation(tmp_path: Path) -> None:
    manifest = write(tmp_path / "p", "chance")
    run = reproduce(manifest, "--vary", "umask", "--find-cause")
    assert "caused by: nothing: two builds in the same circumstances differ" in run.stdout


def test_a_build_that_fails_says_which(tmp_path: Path) -> None:
    manifest = write(tmp_path / "p", "nobody-knows")
    run = reproduce(manifest)
    assert run.returncode == 6
    assert "error[E0600]: first build: nobody-knows@default" in run.stderr
    assert "failed in `open_workspace`: ValueError: nobody-knows" in run.stderr


def test_usage(tmp_path: Path) -> None:
    manifest = write(tmp_path / "p", "nothing")
    run = reproduce(manifest, "--vary", "umsk")
    assert run.returncode == 2
    assert '"umsk" is not a variation' in run.stderr
    assert 'did you mean "umask"' in run.stderr
    run = reproduce(manifest, "--out", ".")
    assert run.returncode == 2
    assert "already exists, and is not empty" in run.stderr


def test_the_lock_beside_the_manifest_is_held_to(tmp_path: Path) -> None:
    project = make(tmp_path / "p", {"one": ["a"], "two": ["b"]})
    project.build()
    text = project.lock.read_text(encoding="utf-8")
    same = reproduce(project.manifest, "--only", "one", "--vary", "path")
    assert same.returncode == 0, same.stdout + same.stderr
    assert "the lock agrees" in same.stdout
    line = next(line for line in text.splitlines() if "sha256" in line)
    project.lock.write_text(text.replace(line, line[:-3] + '00"'), encoding="utf-8")
    other = reproduce(project.manifest, "--vary", "path")
    assert other.returncode == 8
    assert "the lock differs" in other.stdout
    assert "has other content of the same size" in other.stdout
    assert "both builds are the same" in other.stdout


@pytest.mark.needs("faketime", "needs libfaketime")
def test_the_time_is_another_in_workers(varied: tuple[dict[str, Any], list[str]]) -> None:
    document, _ = varied
    assert "payload differs" in states(document)["time"]


def kept_files(folder: Path, name: str) -> tuple[Path, Path, list[str]]:
    """Both builds that were kept, and every file of either, the lock too."""
    both = (folder / "kept" / "first", folder / "kept" / "second")
    found = {
        path.relative_to(each).as_posix()
        for each in both
        for path in (each / name).rglob("*")
        if path.is_file()
    }
    return *both, sorted({*found, f"{name}.lock.yaml"})


@pytest.mark.soak
@pytest.mark.parametrize("name", ["quickstart", "openvino", "qnn", "package"])
def test_checked_in_manifests_are_reproducible(name: str, tmp_path: Path) -> None:
    """Design section 1; what is compared is compared here anew, not by the command itself."""
    shutil.copy(MANIFESTS / f"{name}.yaml", tmp_path)
    quickstart_models.write(tmp_path / "models")
    run = reproduce(tmp_path / f"{name}.yaml", "--out", "kept")
    assert run.returncode == 0, run.stdout + run.stderr
    print(run.stdout)
    one, other, files = kept_files(tmp_path, name)
    assert len(files) > 4
    assert filecmp.cmpfiles(one, other, files, shallow=False)[0] == files


@pytest.mark.soak
def test_a_sharing_group_of_qnn_is_reproducible(tmp_path: Path) -> None:
    """And a model of its own beside it, embedded."""
    project = make(tmp_path, {"pair": ["a", "b"], "alone": ["c"]})
    project.section("execution_providers")["ref"] = {
        "provider": "QNNExecutionProvider",
        "options": {"soc_model": "60"},
    }
    project.section("model_groups", "alone")["embed_mode"] = 1
    project.write()
    run = reproduce(project.manifest, "--out", "kept")
    assert run.returncode == 0, run.stdout + run.stderr
    one, other, files = kept_files(tmp_path, "m")
    assert "m/default/pair/a_qnn.bin" in files
    assert filecmp.cmpfiles(one, other, files, shallow=False)[0] == files


@pytest.mark.soak
def test_what_qnn_does_not_reproduce_is_told(tmp_path: Path) -> None:
    """QAIRT 2.51 writes uninitialized memory into the binaries of some models, in a bare
    onnxruntime too: of a pair of transformers that is not in the form for NPUs, one file differs,
    and no other.
    """
    text = (MANIFESTS / "qnn.yaml").read_text(encoding="utf-8")
    for npu, plain in ((", total: 33", ""), (", attention_bias: [-1, 0]", ""), ("_npu.", ".")):
        assert npu in text
        text = text.replace(npu, plain)
    (tmp_path / "qnn.yaml").write_text(text, encoding="utf-8")
    quickstart_models.write(tmp_path / "models")
    run = reproduce(tmp_path / "qnn.yaml", "--vary", "path", "--format", "json")
    assert run.returncode == 8, run.stdout + run.stderr
    document = found(run)
    (known,) = document["known"]
    assert known.startswith("QNNExecutionProvider: QAIRT 2.51 writes uninitialized memory")
    told = {f["file"]: f for f in document["files"] if f["state"] != "identical"}
    assert set(told) == {"default/llm/SHA256SUMS", "default/llm/prefill_qnn.bin"}
    assert told["default/llm/prefill_qnn.bin"]["state"] == "payload differs"


@pytest.mark.needs("module onnxruntime_qnn")
def test_what_an_ep_is_known_to_vary_is_told_of_its_own_groups(tmp_path: Path) -> None:
    project = make(tmp_path / "p", {"pair": ["a", "b"], "alone": ["c"]})
    project.section("execution_providers")["htp"] = {
        "provider": "QNNExecutionProvider",
        "options": {"soc_model": "60"},
    }
    project.section("model_groups", "pair")["execution_providers"] = ["htp"]
    project.write()
    plan = planning.read(project.manifest, only=(), allow_outside=False)
    (told,) = unstable_eps(plan, {"default/pair", "default/alone"})
    assert told.startswith("QNNExecutionProvider: QAIRT 2.51 writes uninitialized memory")
    assert not list(unstable_eps(plan, {"default/alone"}))


def test_a_lock_that_differs_in_bytes_only_says_what_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A mock: what real EPs vary takes builds of minutes, and differs by chance."""
    project = make(tmp_path / "p", {"one": ["a"]})
    project.build()
    text = project.lock.read_text(encoding="utf-8")
    sums = next(line for line in text.splitlines() if "sha256" in line)
    project.lock.write_text(text.replace(sums, sums[:-3] + '00"'), encoding="utf-8")
    shutil.rmtree(project.folder / "dist")
    monkeypatch.setattr(ReferenceExecutionProvider, "unstable", "it is a mock", raising=False)
    monkeypatch.setattr(ReferenceExecutionProvider, "why_unstable", lambda *_: None, raising=False)
    with pytest.raises(
        LockError, match="known about ReferenceExecutionProvider: it is a mock"
    ) as told:
        epctx.build(project.manifest, out=project.folder / "dist", locked=True)
    assert told.value.remedy.startswith("if nothing was changed, the execution provider is")


@pytest.mark.needs("POSIX", "Windows ends a process without asking it")
def test_who_interrupts_it_finds_no_process_and_no_folder(tmp_path: Path) -> None:
    manifest = write(tmp_path / "p", "nothing")
    (tmp_path / "temporary").mkdir()
    process = subprocess.Popen(
        [*PROGRAM, "reproduce", manifest.name, "-v"],
        cwd=manifest.parent,
        env=os.environ | {"PYTHONPATH": str(VARYING), "TMPDIR": str(tmp_path / "temporary")},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stderr is not None
    line = next(line for line in process.stderr if "optimize" in line)
    assert line.startswith("first build: nothing@default")
    children = psutil.Process(process.pid).children(recursive=True)
    assert len(children) >= 2
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=300)
    assert process.returncode == 130
    assert not psutil.wait_procs(children, timeout=300)[1]
    assert not list((tmp_path / "temporary").rglob("*"))
