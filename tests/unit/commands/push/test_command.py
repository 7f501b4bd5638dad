"""`epctx push`: the files of a package."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from epctx import api
from epctx.commands import push
from epctx.errors import UsageError, VerificationError
from epctx.oci.artifact import blob_of
from tests.kit import pushed, registries, small_registry


def test_files_of_the_same_content_are_sent_once(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"same", b_bin=b"same")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        report = api.push(folder, name, insecure=True)
        assert (report.files, report.state, report.attached) == (3, "pushed", ())
        held = [each for each in server.blobs.values() if b"diffIds" not in each]
        assert report.sent == report.size == sum(map(len, held))
        with pytest.raises(VerificationError, match="does not match the package"):
            api.push(folder, f"{name}@sha256:{'0' * 64}", insecure=True)


def test_a_wrong_reference_is_told_before_anything(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a reference"):
        api.push(tmp_path, "host/a")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda inner: (inner / "a.onnx").write_bytes(b"x"), "was changed"),
        (lambda inner: (inner / "a.onnx").unlink(), "is missing"),
        (lambda inner: (inner / "more").write_bytes(b""), "is not listed in any SHA256SUMS"),
        (lambda inner: (inner / "model.sig").write_bytes(b""), "is not listed in any SHA256SUMS"),
        (lambda inner: (inner / "empty").mkdir(), "cannot be a file of a package"),
        (lambda inner: (inner / "SHA256SUMS").write_text("x"), "line 1 is not"),
    ],
)
def test_what_was_changed_is_told(tmp_path: Path, change: object, words: str) -> None:
    folder = pushed.group(tmp_path, a_onnx=b"one")
    assert callable(change)
    change(folder / "default" / "main")
    with pytest.raises(VerificationError, match=words):
        push.files_to_push(folder)


def test_a_folder_without_sums_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"")
    with pytest.raises(UsageError, match="is neither a package"):
        push.files_to_push(tmp_path)


def test_an_attestation_is_of_the_artifact(tmp_path: Path) -> None:
    folder, own = pushed.group(tmp_path, a_onnx=b"one"), blob_of(b"manifest").digest
    statement = {"subject": [{"name": "m", "digest": {"sha256": own.hex}}]}
    (folder.parent / "m.intoto.json").write_text(json.dumps(statement))
    (folder / "model.sig").write_bytes(b"sig")
    assert [each.name for each in push.attachments(folder, own)] == ["model.sig", "m.intoto.json"]
    with pytest.raises(VerificationError, match="does not name this package"):
        list(push.attachments(folder, blob_of(b"other").digest))
    for text in (b"", b"[]", b'{"subject": [7]}', b'{"subject": 7}'):
        assert not push.names(text, own)
