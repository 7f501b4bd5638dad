"""Manifests: a function of the files alone. What others may write is in tests/faults."""

import json

import pytest

from epctx.oci import artifact
from epctx.oci.artifact import Blob, Damaged

ONE, TWO = artifact.blob_of(b"one"), artifact.blob_of(b"two")


def test_the_order_of_files_is_nothing() -> None:
    first = artifact.package({"b": ONE, "a/c.json": TWO}, name="m")
    assert first == artifact.package({"a/c.json": TWO, "b": ONE}, name="m")
    assert first.digest != artifact.package({"b": TWO, "a/c.json": ONE}, name="m").digest
    assert artifact.files(artifact.read(first.manifest)) == {"a/c.json": TWO, "b": ONE}


def test_bytes_are_always_these() -> None:
    """Another digest would be another artifact for all who have pinned one."""
    made = artifact.package({"x.onnx": ONE})
    assert made.digest.hex == "aaacdc6ef383e83149460f69d19d5f4b4c179cba0ff8fc4fa15b5b8eb2b0b194"


def test_a_path_of_modelpack_goes_before_a_title() -> None:
    document = json.loads(artifact.package({"a/b": ONE}).manifest)
    document["layers"][0]["annotations"][artifact.TITLE] = "b"
    assert list(artifact.files(artifact.read(json.dumps(document).encode()))) == ["a/b"]
    del document["layers"][0]["annotations"][artifact.PATH]
    assert list(artifact.files(artifact.read(json.dumps(document).encode()))) == ["b"]


def test_what_is_about_an_artifact_is_a_signature_or_an_attestation() -> None:
    whole = artifact.package({"x": ONE})
    subject = artifact.descriptor(whole.manifest)

    def told(kind: str, name: str) -> tuple[str, Blob] | None:
        made = artifact.referrer(kind, name, b"one", subject)
        return artifact.attached(artifact.read(made.manifest), whole.digest)

    assert told(artifact.SIGNATURE, "model.sig") == ("model.sig", ONE)
    assert told(artifact.ATTESTATION, "m.intoto.json") == ("m.intoto.json", ONE)
    for kind, name in (
        (artifact.SIGNATURE, "other.sig"),
        (artifact.SIGNATURE, "m.intoto.json"),
        (artifact.ATTESTATION, "../m.intoto.json"),
        (artifact.ATTESTATION, "m.json"),
        ("application/x", "model.sig"),
    ):
        assert told(kind, name) is None
    made = artifact.referrer(artifact.SIGNATURE, "model.sig", b"one", subject)
    assert artifact.attached(artifact.read(made.manifest), ONE.digest) is None


def test_one_that_is_too_large_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_REGISTRY_ATTACHED_BYTES", "2")
    whole = artifact.package({"x": ONE})
    subject = artifact.descriptor(whole.manifest)
    made = artifact.referrer(artifact.SIGNATURE, "model.sig", b"one", subject)
    with pytest.raises(Damaged, match="more than 2 bytes"):
        artifact.attached(artifact.read(made.manifest), whole.digest)


def test_in_an_index_the_same_file_is_replaced() -> None:
    signature = artifact.descriptor(b"1", artifact_type=artifact.SIGNATURE, name="model.sig")
    other = artifact.descriptor(b"2", artifact_type=artifact.SIGNATURE, name="model.sig")
    attests = artifact.descriptor(b"3", artifact_type=artifact.ATTESTATION, name="a.intoto.json")
    assert artifact.replaces(other, signature) and not artifact.replaces(attests, signature)
    assert artifact.read_index(artifact.index([signature, attests])) == (signature, attests)
