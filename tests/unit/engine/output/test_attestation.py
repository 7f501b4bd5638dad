"""The attestation of a release, held to the schemas of in-toto and SLSA by their own bindings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from epctx.engine.output import attestation
from epctx.errors import ModelError, VerificationError
from epctx.files import digest
from epctx.files.outputs import OutputFile
from epctx.lockfile.types import Lock, LockedSource, LockedToolchain

Document = dict[str, Any]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "tiny.onnx").write_bytes(b"weights")
    path = tmp_path / "m.yaml"
    path.write_text("name: m\n")
    return path


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


def subject(content: bytes = b"model") -> OutputFile:
    return OutputFile(
        name="a_ctx.onnx",
        size=len(content),
        sha256=digest.of_bytes(content, "sha256"),
        blake3=digest.of_bytes(content),
    )


@pytest.fixture
def made(manifest: Path, lock: Lock) -> bytes:
    return attestation.make(manifest, lock, {"m/default/g/a_ctx.onnx": subject()})


def test_it_names_what_was_released_and_from_what(made: bytes) -> None:
    document = json.loads(made)
    assert document["_type"] == "https://in-toto.io/Statement/v1"
    assert document["predicateType"] == "https://slsa.dev/provenance/v1"
    assert document["subject"] == [
        {"name": "m/default/g/a_ctx.onnx", "digest": {"sha256": subject().sha256.hex}}
    ]
    definition = document["predicate"]["buildDefinition"]
    materials = definition["resolvedDependencies"]
    assert [each["name"] for each in materials] == [
        "m.yaml",
        "models/tiny.onnx",
        "epctx",
        "onnx",
        "onnxruntime",
    ]
    assert materials[1]["digest"] == {
        "blake3": digest.of_bytes(b"weights").hex,
        "sha256": digest.of_bytes(b"weights", "sha256").hex,
    }
    assert materials[-1]["uri"] == "pkg:pypi/onnxruntime-qnn@2.7"
    assert definition["externalParameters"]["manifest"] == materials[0]
    assert definition["internalParameters"]["execution_providers"]["EP"]["toolchain"] == {
        "sdk": "2"
    }
    assert document["predicate"]["runDetails"] == {
        "builder": {"id": "pkg:pypi/epctx@0.1.0", "version": {"epctx": "0.1.0"}}
    }


def test_it_is_the_same_wherever_it_is_made(made: bytes, lock: Lock, tmp_path: Path) -> None:
    other = tmp_path / "elsewhere"
    (other / "models").mkdir(parents=True)
    (other / "models" / "tiny.onnx").write_bytes(b"weights")
    (other / "m.yaml").write_text("name: m\n")
    again = attestation.make(other / "m.yaml", lock, {"m/default/g/a_ctx.onnx": subject()})
    assert again == made
    assert str(tmp_path).encode() not in made


@pytest.mark.parametrize("change", [lambda p: p.write_bytes(b"another"), lambda p: p.unlink()])
def test_a_source_that_is_another_now_is_refused(
    manifest: Path, lock: Lock, change: Callable[[Path], object]
) -> None:
    change(manifest.parent / "models" / "tiny.onnx")
    with pytest.raises(ModelError):
        attestation.make(manifest, lock, {"a": subject()})


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
