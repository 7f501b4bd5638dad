"""A manifest of three targets where the devices of QNN and OpenVINO are hidden, verb by verb.

Tried as a user does it, in a folder of its own. Commands that see a device have a process each.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import onnx
import pytest

from epctx.providers.onnxruntime import plugins
from tests.kit import command_line, real_models

QNN, VINO = "QNNExecutionProvider", "OpenVINOExecutionProvider"
MANIFEST = """schema_version: 1
name: three
models: {m: {path: m.onnx}}
execution_providers:
  ref: {provider: ReferenceExecutionProvider}
  htp: {provider: QNNExecutionProvider, options: {soc_model: "60"}}
  vino: {provider: OpenVINOExecutionProvider}
model_groups:
  g: {models: [m], execution_providers: [ref]}
targets:
  here: {}
  snapdragon: {model_groups: {g: {execution_providers: [htp]}}}
  intel: {model_groups: {g: {execution_providers: [vino]}}}
"""
HIDDEN = "EPCTX_HIDE_DEVICES hides its devices"


@dataclass(frozen=True)
class User:
    """Someone in a folder, with a cache, who hides devices or not."""

    folder: Path

    def epctx(self, *arguments: str, hide: str = f"{VINO},{QNN}") -> tuple[int, str, str]:
        """A command's exit code, stdout and stderr."""
        own = {plugins.HIDE: hide, "EPCTX_CACHE_DIR": str(self.folder / "cache")}
        both = hide == f"{VINO},{QNN}"
        run = command_line.inside if both else command_line.epctx
        ran = run(*arguments, cwd=self.folder, **own)
        assert "Traceback" not in ran.stderr
        return ran.returncode, ran.stdout, ran.stderr


@pytest.fixture(scope="module")
def user(tmp_path_factory: pytest.TempPathFactory) -> User:
    folder = tmp_path_factory.mktemp("three")
    onnx.save(real_models.mlp(layers=2, width=32), folder / "m.onnx")
    (folder / "m.yaml").write_text(MANIFEST, encoding="utf-8")
    return User(folder)


@pytest.fixture(scope="module")
def built(user: User) -> tuple[int, str, str]:
    return user.epctx("build", "m.yaml", "--keep-going")


def test_doctor_tells_what_is_hidden(user: User) -> None:
    code, told, _ = user.epctx("doctor")
    assert code == 0
    assert f"hidden    the devices of {VINO}, {QNN} (EPCTX_HIDE_DEVICES)" in told
    for name in (VINO, QNN):
        assert f"{name}  no device" in told
    assert told.count(HIDDEN) == 2
    (found,) = [
        each
        for each in json.loads(user.epctx("doctor", "--format", "json")[1])["providers"]
        if each["name"] == QNN
    ]
    assert found["versions"]["onnxruntime-qnn"], "the version is shown without a device, too"


def test_plan_ends_as_the_build_would(user: User) -> None:
    code, told, wrong = user.epctx("plan", "m.yaml", "--out", "elsewhere")
    assert code == 5
    assert "g@here [ref]: runs\n" in told or "g@here [ref]: publishes" in told
    for target, alias in (("snapdragon", "htp"), ("intel", "vino")):
        assert f"g@{target} [{alias}]: runs, and fails here" in told
    assert f"error[E0502]: g@snapdragon: {QNN}: {HIDDEN}" in wrong
    assert f"error[E0502]: g@intel: {VINO}: {HIDDEN}" in wrong
    code, told, wrong = user.epctx("plan", "m.yaml", "--only", "g@here")
    assert (code, wrong) == (0, "")


def test_build_publishes_the_target_that_needs_neither(
    user: User, built: tuple[int, str, str]
) -> None:
    code, _, wrong = built
    assert code == 5
    assert f"error[E0502]: g@snapdragon: {QNN}: {HIDDEN}\n  -> unset EPCTX_HIDE_DEVICES" in wrong
    assert f"error[E0502]: g@intel: {VINO}: {HIDDEN}\n  -> unset EPCTX_HIDE_DEVICES" in wrong
    assert [path.name for path in (user.folder / "dist" / "three").iterdir()] == ["here"]
    assert not (user.folder / "m.lock.yaml").exists(), "not all of it was built"
    # What the remedy says.
    assert user.epctx("build", "m.yaml", "--only", "g@here")[0] == 0


def test_verify_checks_what_is_there(user: User, built: tuple[int, str, str]) -> None:
    assert user.epctx("verify", "dist")[0] == 0
    code, told, _ = user.epctx("verify", "dist", "--manifest", "m.yaml")
    assert code == 7
    for target in ("snapdragon", "intel"):
        assert f"the manifest m.yaml lists g@{target}, but it does not exist" in told


def test_package_writes_none(user: User, built: tuple[int, str, str]) -> None:
    code, _, wrong = user.epctx("package", "m.yaml", "--out", "packed")
    assert code == 5
    assert HIDDEN in wrong
    assert not (user.folder / "packed" / "three.ortpackage").exists()


@pytest.mark.needs_device(QNN)
def test_what_was_built_before_is_run_and_checked_nowhere_now(
    user: User, built: tuple[int, str, str]
) -> None:
    """A result of a host with the device is not told as one of a host without, nor the reverse."""
    only = ("--only", "g@snapdragon", "--out", "before")
    assert user.epctx("build", "m.yaml", *only, hide=VINO)[0] == 0
    folder = "before/three/snapdragon/g"
    code, _, wrong = user.epctx("run", f"{folder}/m_ctx.onnx")
    assert code == 5
    assert f"{QNN}: {HIDDEN}" in wrong
    code, told, _ = user.epctx("verify", folder, "--manifest", "m.yaml")
    assert code == 0
    assert f"not checkable: {folder}/m_ctx.onnx: not on this host: {QNN}: {HIDDEN}" in told
    assert f"this host has no device of {QNN}: {HIDDEN}" in told
    # Numbers would be computed by sessions that this host cannot open.
    code, _, wrong = user.epctx("build", "m.yaml", *only)
    assert code == 5
    assert HIDDEN in wrong
    assert user.epctx("plan", "m.yaml", *only)[0] == 5
    # The bytes do not depend on it, and are published from the cache; they were not run.
    code, told, _ = user.epctx("build", "m.yaml", *only, "--no-verify")
    assert code == 0
    assert "not run" in told and HIDDEN in told
    code, told, _ = user.epctx("build", "m.yaml", *only, hide=VINO)
    assert code == 0
    assert "hidden" not in told


@pytest.mark.parametrize(
    ("names", "what"),
    [
        ("OpenVINO", "names 'OpenVINO', which is not a known execution provider"),
        (f"{QNN},Nobody", "names 'Nobody', which is not a known execution provider"),
        ("ReferenceExecutionProvider", "has no devices of onnxruntime"),
    ],
)
def test_a_name_that_hides_nothing_is_refused(user: User, names: str, what: str) -> None:
    code, _, wrong = user.epctx("cache", "info", hide=names)
    assert code == 2
    assert what in wrong
