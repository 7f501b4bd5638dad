"""Remedies are followed to the letter: the step that a message names gives another result.

Of each class of error one message that names a step is provoked; the step is read out of it, not
written here. Classes whose remedy no test can carry out are listed with the reason.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from epctx import errors
from tests.kit import onnx_text
from tests.kit.command_line import epctx, inside

MODEL = "g (float[batch, 4] x) => (float[batch, 4] y) { a = Exp (x) y = Add (a, x) }"
QNN = {"provider": "QNNExecutionProvider", "options": {"soc_model": "60"}}
REFERENCE = {"provider": "ReferenceExecutionProvider"}


NOT_FOLLOWED: Mapping[type[errors.EpctxError], str] = {
    errors.ProviderUnavailable: "it names a package to install; tests install nothing",
    errors.StorageError: "it asks for room on a disk",
    errors.TimedOut: "it asks for more time, which tests of limits give",
    errors.EpctxError: "a bug: it names a log, which test_pool holds",
    errors.Interrupted: "it asks to run the command again, which tests of interrupts do",
    errors.InvalidGraph: "a model in a folder is broken: it asks its maker",
}
"""Classes of which no message is followed here."""


@dataclass(frozen=True)
class Told:
    """What a command said."""

    kind: str
    remedy: str
    words: str

    @property
    def quoted(self) -> str:
        """The first step of the remedy, between backquotes."""
        found = re.search(r"`([^`]+)`", self.remedy)
        assert found is not None, self.remedy
        return found[1]


class Project:
    """A manifest that can be changed as a message says, and commands on it."""

    def __init__(self, folder: Path, provider: Mapping[str, Any]) -> None:
        self.folder = folder
        model = onnx_text.proto(MODEL)
        (folder / "m.onnx").write_bytes(model.SerializeToString())
        self.manifest: dict[str, Any] = {
            "schema_version": 1,
            "name": "m",
            "models": {"m": {"path": "m.onnx"}},
            "execution_providers": {"ep": dict(provider)},
            "model_groups": {"g": {"models": ["m"], "execution_providers": ["ep"]}},
        }

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Write the manifest and run a command beside it."""
        path = self.folder / "m.yaml"
        path.write_text(yaml.safe_dump(self.manifest, sort_keys=False), encoding="utf-8")
        real = self.manifest["execution_providers"]["ep"] == QNN
        return (epctx if real else inside)(*command, cwd=self.folder)

    def told(self, *command: str) -> Told:
        """What the error of a command says, in its JSON form."""
        ran = self.run(*command, "--format", "json")
        assert ran.returncode != 0, ran.stdout
        document = json.loads(ran.stdout)
        error = document.get("error") or document["groups"][0]["failure"]
        words = " ".join(str(error[part]) for part in ("what", "why", "remedy"))
        return Told(error.get("type") or error["kind"], error["remedy"], words)

    def follow(self, quoted: str, place: dict[str, Any]) -> None:
        """Write the keys that a remedy quotes into a mapping of the manifest."""
        place.update(yaml.safe_load(quoted))


def model_error(project: Project) -> str:
    """QNN has no symbolic dimensions."""
    told = project.told("build", "m.yaml")
    project.follow(told.quoted, project.manifest["models"]["m"])
    assert project.run("build", "m.yaml").returncode == 0
    return told.kind


def meant(told: Told) -> str:
    """The word that a message takes a misspelt one for."""
    said = re.search(r'did you mean "(\w+)"', told.words)
    assert said is not None, told.words
    return said[1]


def invalid_manifest(project: Project) -> str:
    """A misspelt key."""
    group = project.manifest["model_groups"]["g"]
    group["optimise"] = {"level": "none"}
    told = project.told("build", "m.yaml")
    group[meant(told)] = group.pop("optimise")
    assert project.run("build", "m.yaml").returncode == 0
    return told.kind


def manifest_error(project: Project) -> str:
    """An op to exclude that no model has, but one nearly so."""
    group = project.manifest["model_groups"]["g"]
    group["partition"] = {"exclude": {"op_types": ["Expp"]}}
    told = project.told("build", "m.yaml")
    group["partition"] = {"exclude": {"op_types": [meant(told)]}}
    assert project.run("build", "m.yaml").returncode == 0
    return told.kind


def compile_error(project: Project) -> str:
    """No EP takes any node."""
    project.manifest["model_groups"]["g"]["partition"] = {"exclude": {"op_types": ["Exp", "Add"]}}
    told = project.told("build", "m.yaml")
    last = re.findall(r"`([^`]+)`", told.remedy)[-1]
    project.follow(last, project.manifest["model_groups"]["g"])
    del project.manifest["model_groups"]["g"]["partition"]
    assert project.run("build", "m.yaml").returncode == 0
    return told.kind


def lock_error(project: Project) -> str:
    """The lock is of another source."""
    assert project.run("build", "m.yaml").returncode == 0
    other = onnx_text.proto(MODEL.replace("Exp", "Neg"))
    (project.folder / "m.onnx").write_bytes(other.SerializeToString())
    told = project.told("build", "m.yaml", "--locked")
    assert project.run(*shlex.split(told.quoted)[1:], "m.yaml").returncode == 0
    assert project.run("build", "m.yaml", "--locked").returncode == 0
    return told.kind


def usage_error(project: Project) -> str:
    """A model of open dimensions is run without their sizes."""
    told = project.told("run", "m.onnx")
    option = re.search(r"--dimension \S+=\d+", told.remedy)
    assert option is not None, told.remedy
    assert project.run("run", "m.onnx", *option[0].split()).returncode == 0
    return told.kind


def verification_error(project: Project) -> str:
    """A tolerance that float16 cannot keep."""
    group = project.manifest["model_groups"]["g"]
    project.manifest["models"]["m"]["dimensions"] = {"batch": 3}
    group["verify"] = {"tolerance": {"max_rel": 0.0, "cosine_min": 1.0}}
    told = project.told("build", "m.yaml")
    proposed = re.search(r"`verify\.tolerance: (\{.*\})` would pass", told.remedy)
    assert proposed is not None, told.remedy
    group["verify"]["tolerance"] = yaml.safe_load(proposed[1])
    assert project.run("build", "m.yaml").returncode == 0
    del group["verify"]
    bisect = re.search(r"`epctx (bisect [^`]+)`", told.remedy)
    assert bisect is not None and project.run(*bisect[1].split()).returncode == 0
    return told.kind


FOLLOWED: Mapping[str, tuple[Mapping[str, Any], Callable[[Project], str]]] = {
    "ModelError": (QNN, model_error),
    "InvalidManifest": (REFERENCE, invalid_manifest),
    "ManifestError": (REFERENCE, manifest_error),
    "CompileError": (REFERENCE, compile_error),
    "LockError": (REFERENCE, lock_error),
    "UsageError": (REFERENCE, usage_error),
    "VerificationError": (QNN, verification_error),
}


@pytest.mark.parametrize("kind", FOLLOWED)
def test_what_a_message_says_to_do_gives_another_result(kind: str, tmp_path: Path) -> None:
    provider, follow = FOLLOWED[kind]
    assert follow(Project(tmp_path, provider)) == kind


def test_every_class_of_error_is_followed_or_listed() -> None:
    def tree(kind: type[errors.EpctxError]) -> list[type[errors.EpctxError]]:
        return [kind, *(each for sub in kind.__subclasses__() for each in tree(sub))]

    names = {
        kind.__name__ for kind in tree(errors.EpctxError) if kind.__module__ == errors.__name__
    }
    assert names - FOLLOWED.keys() == {kind.__name__ for kind in NOT_FOLLOWED}
