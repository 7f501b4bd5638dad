"""Attestations: builder, artifact digests, and content."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epctx.engine.output import attestation
from epctx.errors import ModelError, VerificationError
from epctx.files import digest
from epctx.lockfile.types import Lock, LockedFile, LockedSource, LockedToolchain
from epctx.manifest import Manifest

Document = dict[str, Any]


PARSED = digest.of_bytes(b"name: m\n", "sha256").hex
BUILDER = "https://ci.example.com/release"


def manifest_in(folder: Path) -> Manifest:
    """One whose file is another by now."""
    (folder / "models").mkdir(parents=True)
    (folder / "models" / "tiny.onnx").write_bytes(b"weights")
    (folder / "m.yaml").write_text("name: edited\n")
    return Manifest(name="m", path=folder / "m.yaml", targets=(), sha256=PARSED)


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    return manifest_in(tmp_path)


@pytest.fixture
def lock() -> Lock:
    source = LockedSource(digest=str(digest.of_bytes(b"weights")), size=7)
    return Lock(
        execution_providers={
            "EP": LockedToolchain(code="epctx blake3:1", host={}, toolchain={"sdk": "2"})
        },
        groups={},
        name="m",
        sources={"models/tiny.onnx": source},
        toolchain={
            "epctx": "0.1.0",
            "epctx/compile": "blake3:2",
            "onnx": "1.20",
            "onnxruntime": "onnxruntime-qnn 2.7",
        },
    )


def subject(content: bytes = b"model") -> LockedFile:
    return LockedFile(sha256=digest.of_bytes(content, "sha256").hex, size=len(content))


@pytest.fixture
def made(manifest: Manifest, lock: Lock) -> bytes:
    return attestation.make(manifest, lock, {"m/default/g/a_ctx.onnx": subject()}, BUILDER)


def test_it_names_what_was_released_and_from_what(made: bytes) -> None:
    document = json.loads(made)
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [
        {"name": "m/default/g/a_ctx.onnx", "digest": {"sha256": subject().sha256}}
    ]
    definition = document["predicate"]["buildDefinition"]
    materials = definition["resolvedDependencies"]
    assert [each["name"] for each in materials] == [
        *("m.yaml", "models/tiny.onnx", "epctx", "onnx", "onnxruntime-qnn"),
        *("EP/code", "epctx/compile"),
    ]
    assert materials[0]["digest"] == {"sha256": PARSED}, "of what was parsed"
    assert materials[1]["digest"] == {
        "blake3": digest.of_bytes(b"weights").hex,
        "sha256": digest.of_bytes(b"weights", "sha256").hex,
    }
    assert materials[4]["uri"] == "pkg:pypi/onnxruntime-qnn@2.7"
    assert definition["externalParameters"]["manifest"] == materials[0]
    assert definition["internalParameters"]["execution_providers"]["EP"]["toolchain"] == {
        "sdk": "2"
    }
    assert document["predicate"]["runDetails"] == {
        "builder": {"id": BUILDER, "version": {"epctx": "0.1.0"}}
    }


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"another"), lambda p: p.unlink()])
def test_a_source_that_is_another_now_is_refused(
    manifest: Manifest, lock: Lock, change: Callable[[Path], object]
) -> None:
    change(manifest.path.parent / "models" / "tiny.onnx")
    with pytest.raises(ModelError):
        attestation.make(manifest, lock, {"a": subject()}, BUILDER)


def without(*path: str) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        place = document
        for step in path[:-1]:
            place = place[step]
        del place[path[-1]]

    return edit


def put(value: object, *path: str) -> Callable[[Document], None]:
    def edit(document: Document) -> None:
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value

    return edit


@pytest.mark.parametrize(
    "edit",
    [
        without("subject"),
        without("predicate"),
        without("predicateType"),
        put("https://in-toto.io/Statement/v0.1", "_type"),
        put("https://slsa.dev/provenance/v0.2", "predicateType"),
        put([{"name": "a"}], "subject"),
        put("extra", "unknown"),
        without("predicate", "runDetails", "builder"),
        without("predicate", "buildDefinition", "buildType"),
        without("predicate", "buildDefinition", "externalParameters"),
        put("extra", "predicate", "unknown"),
        put([{}], "predicate", "buildDefinition", "resolvedDependencies"),
    ],
)
def test_what_breaks_a_schema_is_noticed(made: bytes, edit: Callable[[Document], None]) -> None:
    attestation.check(made)
    document = json.loads(made)
    edit(document)
    with pytest.raises(VerificationError):
        attestation.check(json.dumps(document).encode())


def test_what_is_no_json_is_noticed() -> None:
    with pytest.raises(VerificationError):
        attestation.check(b"\xff{")


@pytest.mark.parametrize(
    "edit",
    [
        put("https://example.com/build", "predicate", "buildDefinition", "buildType"),
        without("predicate", "buildDefinition", "internalParameters", "lock"),
        put([{"name": "a", "digest": {"sha1": "0" * 40}}], "subject"),
        put([{"name": "a", "digest": {"sha256": "0" * 64}}] * 2, "subject"),
    ],
)
def test_an_attestation_of_others_is_refused(made: bytes, edit: Callable[[Document], None]) -> None:
    document = json.loads(made)
    edit(document)
    attestation.check(json.dumps(document).encode())
    with pytest.raises(VerificationError):
        attestation.lock_and_subjects(json.dumps(document).encode())


GITHUB = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_WORKFLOW_REF": "org/models/.github/workflows/release.yml@refs/tags/v1",
}
GITLAB = {"CI_PROJECT_URL": "https://gitlab.com/org/models", "CI_RUNNER_ID": "12"}
AZURE = {
    "SYSTEM_COLLECTIONURI": "https://dev.azure.com/org/",
    "SYSTEM_TEAMPROJECTID": "5f3c",
    "SYSTEM_DEFINITIONID": "7",
}
JENKINS = {"JENKINS_URL": "https://ci.example.com/", "JOB_NAME": "models/release"}


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        (
            GITHUB,
            "https://github.com/org/models/.github/workflows/release.yml@refs/tags/v1",
        ),
        (GITLAB, "https://gitlab.com/org/models/-/runners/12"),
        (AZURE, "https://dev.azure.com/org/5f3c/_build?definitionId=7"),
        (JENKINS, "https://ci.example.com/job/models/release"),
        ({}, None),
        ({"CI": "true"}, None),
        ({**GITHUB, "GITHUB_WORKFLOW_REF": ""}, None),
        ({**GITLAB, "CI_PROJECT_URL": "file:///etc"}, None),
    ],
)
def test_a_ci_system_names_the_builder(environment: dict[str, str], found: str | None) -> None:
    assert attestation.identify_builder({"PATH": "/bin", **environment}) == found
