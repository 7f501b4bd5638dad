"""`epctx build --locked`: whatever would differ fails with exit code 8 and says what."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from epctx import lockfile
from epctx.errors import LockError
from epctx.keys import toolchain as toolchains
from epctx.keys.toolchain import ProviderRecord, Toolchain
from epctx.manifest import ProviderSpec
from tests.kit import command_line, projects
from tests.kit.projects import Project, flip, ran, states, stats

pytestmark = pytest.mark.usefixtures("jobs_inline")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("locked")
    projects.built(folder)
    return folder


@pytest.fixture
def project(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    return projects.copied(built, tmp_path, monkeypatch)


def refusal(project: Project, **options: object) -> str:
    """Why a locked build fails; it leaves everything as it was."""
    project.write()
    before = stats(project.folder)
    with pytest.raises(LockError) as caught:
        project.build(locked=True, **options)
    assert caught.value.exit_code == 8
    assert caught.value.where == "m.lock.yaml"
    after = stats(project.folder)
    after.pop("dist"), before.pop("dist")
    before["m.yaml"] = after["m.yaml"]
    assert after == before
    return str(caught.value)


def test_what_is_as_it_was_passes_and_writes_no_lock(project: Project) -> None:
    lock = stats(project.folder)["m.lock.yaml"]
    assert states(project.build(locked=True)) == {"one": "up to date", "two": "up to date"}
    assert stats(project.folder)["m.lock.yaml"] == lock


def test_a_fresh_checkout_is_built_and_held_to_the_lock(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    before = project.files()
    shutil.rmtree(project.folder / "dist")
    monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / "empty"))
    lock = project.lock.read_bytes()
    assert states(project.build(locked=True)) == {"one": "built", "two": "built"}
    assert project.files() == before
    assert project.lock.read_bytes() == lock


def test_without_a_lock_it_fails(project: Project) -> None:
    project.lock.unlink()
    with pytest.raises(LockError, match="there is no lock"):
        project.build(locked=True)


def other_code(patch: pytest.MonkeyPatch) -> None:
    """As if epctx's own sources were others, of the same version."""
    patch.setattr(Toolchain, "own", lambda self, patterns: f"blake3:{'1' * 64}")


def test_a_commit_that_changes_no_byte_is_built_and_passes(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_code(monkeypatch)
    report = project.build(locked=True)
    assert states(report) == {"one": "built", "two": "built"}
    assert ("compile", "a") in ran(report)
    lock = stats(project.folder)["m.lock.yaml"]
    project.build()
    assert stats(project.folder)["m.lock.yaml"] == lock, "it says the same: it is left as it is"


def test_a_commit_that_changes_bytes_is_told(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    other_code(monkeypatch)
    shutil.rmtree(project.published)
    text = project.lock.read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if "sha256" in line)
    project.lock.write_text(text.replace(line, line[:-3] + '00"'), encoding="utf-8")
    told = refusal(project)
    assert "toolchain: epctx/compile has changed" in told
    assert "has other content of the same size" in told


def test_another_onnxruntime(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    installed = toolchains.version
    monkeypatch.setattr(
        toolchains, "version", lambda name: "9.9" if name == "onnxruntime" else installed(name)
    )
    told = refusal(project)
    assert f'toolchain: onnxruntime: "{installed("onnxruntime")}" is now "9.9"' in told
    assert "`epctx build` writes a new lock" in told


def test_another_ep_option(project: Project) -> None:
    options = project.section("execution_providers", "ref", "options")
    options["hardware_architecture"] = "v75"
    told = refusal(project)
    assert 'default/one: execution_providers[0].options.hardware_architecture: "v75" is new' in told
    assert "default/two: execution_providers[0].options.hardware_architecture" in told


@pytest.mark.parametrize("cache", [True, False])
def test_another_input_byte(project: Project, cache: bool) -> None:
    flip(project.folder / "b.data")
    size = (project.folder / "b.data").stat().st_size
    assert f"b.data: has other content of the same size, {size} bytes" in refusal(
        project, cache=cache
    )


def test_another_model(project: Project) -> None:
    project.edit("a", lambda model: setattr(model, "doc_string", "edited"))
    assert "a.onnx: has other content" in refusal(project)


def test_a_missing_source(project: Project) -> None:
    (project.folder / "c.data").unlink()
    told = refusal(project)
    assert "c.data: does not exist" in told
    assert "is no longer a source" not in told


def test_an_edited_output(project: Project) -> None:
    flip(project.published / "two" / "b_reference.bin", 5000)
    told = refusal(project)
    assert "default/two/b_reference.bin: was changed after it was built" in told
    assert "restore the files, or run `epctx build`" in told


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"(b_reference.bin:\n +sha256: )\w{8}", r"\g<1>00000000"),
        (r"b_reference.bin:", "b_other.bin:"),
    ],
)
def test_a_wrong_entry_of_the_lock_is_no_changed_output(
    project: Project, old: str, new: str
) -> None:
    """Somebody has edited or merged the lock; what is published is what was built."""
    text, count = re.subn(old, new, project.lock.read_text(encoding="utf-8"))
    assert count
    project.lock.write_text(text, encoding="utf-8")
    told = refusal(project)
    assert "default/two/b_reference.bin: agrees with SHA256SUMS beside it: the lock was" in told
    assert ("b_other.bin: agrees with SHA256SUMS beside it" in told) is (new == "b_other.bin:")
    assert "was changed after" not in told and "restore the lock, or run `epctx build`" in told
    ran = command_line.inside("verify", "dist", "--lock", "m.lock.yaml", cwd=project.folder)
    assert ran.returncode == 7 and "the lock" in ran.stdout
    assert "was changed" not in ran.stdout + ran.stderr


def test_a_missing_output(project: Project) -> None:
    (project.published / "two" / "c_ctx.onnx").unlink()
    assert "default/two/c_ctx.onnx: is missing" in refusal(project)


def test_an_output_too_many(project: Project) -> None:
    (project.published / "two" / "more.bin").touch()
    assert "default/two/more.bin: does not belong there" in refusal(project)


def without_a_group(project: Project) -> None:
    del project.section("model_groups")["one"]


def another_order(project: Project) -> None:
    project.section("model_groups", "two")["sharing_groups"] = {"all": ["c", "b"]}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (without_a_group, "default/one: is no longer built"),
        (another_order, "default/two: session groups."),
    ],
)
def test_another_manifest(project: Project, change: Callable[[Project], None], told: str) -> None:
    change(project)
    assert told in refusal(project)


def test_with_only_the_rest_is_not_compared(project: Project) -> None:
    flip(project.folder / "b.data")
    assert states(project.build(locked=True, only=["one"])) == {"one": "up to date"}
    assert "b.data" in refusal(project, only=["two"])


def test_another_host_is_no_broken_build(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """For an EP whose bytes depend on the host, told apart from a difference; see test_hosts."""
    known = Toolchain.provider

    def on(isa: str) -> Callable[[Toolchain, ProviderSpec], ProviderRecord]:
        return lambda self, spec: replace(known(self, spec), host={"isa": isa})

    monkeypatch.setattr(Toolchain, "provider", on("avx2"))
    project.build()
    assert "isa: avx2" in project.lock.read_text(encoding="utf-8")
    monkeypatch.setattr(Toolchain, "provider", on("avx512"))
    told = refusal(project)
    assert "no entry for this kind of host" in told
    assert "isa: avx512" in told and "isa: avx2" in told
    assert "the build differs" not in told


def test_a_build_that_gives_other_bytes_publishes_nothing(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All causes are the same, and what comes out is not: no reason, but no match."""
    text = project.lock.read_text(encoding="utf-8")
    shutil.rmtree(project.published)
    line = next(line for line in text.splitlines() if "sha256" in line)
    project.lock.write_text(text.replace(line, line[:-3] + '00"'), encoding="utf-8")
    told = refusal(project)
    assert "has other content of the same size" in told
    assert not project.published.exists()


def test_many_differences_are_counted(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(30):
        (project.published / "two" / f"{number}.bin").touch()
    assert "and 10 more" in refusal(project)


def test_paths_on_another_drive_stay_relative(tmp_path: Path) -> None:
    assert lockfile.relative(tmp_path / "a" / "m.onnx", tmp_path / "b") == "../a/m.onnx"
