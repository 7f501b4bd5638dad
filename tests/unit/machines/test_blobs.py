import os
from pathlib import Path

import pytest

from epctx.errors import StorageError, UsageError
from epctx.files.digest import of_bytes
from epctx.machines import blobs
from epctx.machines.blobs import new_nonce


def held(folder: Path, digest: str) -> Path:
    (found,) = folder.rglob(digest)
    found.chmod(0o644)
    return found


def test_a_content_goes_through_a_folder_that_both_see(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    here, there = (blobs.shared(f"file://{tmp_path.as_posix()}/sh%20ared") for _ in range(2))
    blob = here.put(tmp_path / "a")
    assert here.put(tmp_path / "a") == blob == blobs.Blob(digest=of_bytes(b"weights"), size=7)
    there.fetch(blob, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights" and (tmp_path / "sh ared").is_dir()
    with pytest.raises(StorageError, match="cannot be read"):
        here.put(tmp_path / "none")


def test_what_a_store_gives_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    shared = blobs.shared((tmp_path / "store").as_uri())
    blob = shared.put(tmp_path / "a")
    there = held(tmp_path / "store", blob.digest.hex)
    for content in (b"weight", b"weights and more", b"weightx"):
        there.write_bytes(content)
        with pytest.raises(StorageError, match="did not come through"):
            shared.fetch(blob, tmp_path / "b")
        assert not (tmp_path / "b").exists()
    assert not there.exists(), "what is not its digest's content is removed"
    with pytest.raises(StorageError, match="it is not there"):
        shared.fetch(blob, tmp_path / "b")


def test_what_the_store_has_lost_or_spoilt_is_put_there_anew(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    shared = blobs.shared((tmp_path / "store").as_uri())
    blob = shared.put(tmp_path / "a")
    held(tmp_path / "store", blob.digest.hex).unlink()
    shared.put(tmp_path / "a")
    held(tmp_path / "store", blob.digest.hex).write_bytes(b"weightx")
    with pytest.raises(StorageError, match="did not come through"):
        shared.fetch(blob, tmp_path / "b")
    shared.put(tmp_path / "a")
    shared.fetch(blob, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights"


def test_what_was_fetched_is_not_fetched_again_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = blobs.shared((tmp_path / "store").as_uri(), tmp_path / "kept")
    found = []
    for number, name in enumerate("abc"):
        monkeypatch.setattr(blobs, "_KEPT", 100 if name != "c" else 20)
        (tmp_path / name).write_bytes(name.encode() * 9)
        found.append(shared.put(tmp_path / name))
        shared.fetch(found[-1], tmp_path / f"{name}1")
        os.utime(tmp_path / "kept" / found[-1].digest.hex, (number, number))
        held(tmp_path / "store", found[-1].digest.hex).unlink()
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert kept == {each.digest.hex for each in found[1:]}
    shared.fetch(found[1], tmp_path / "b2")
    assert (tmp_path / "b2").read_bytes() == b"b" * 9


def test_an_answer_is_heard_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, nonce = blobs.shared((tmp_path / "store").as_uri()), new_nonce()
    shared.say(nonce, "Jürgen")
    assert shared.heard(nonce) == "Jürgen"
    monkeypatch.setenv("EPCTX_LIMIT_MACHINE_JOB", "3")
    with pytest.raises(StorageError, match="at most 67"):
        shared.heard(nonce)
    shared.forget([nonce, new_nonce()])
    with pytest.raises(StorageError, match="there is no answer"):
        shared.heard(nonce)


def test_an_answer_of_who_does_not_know_the_nonce_is_none(tmp_path: Path) -> None:
    shared, nonce, other = blobs.shared((tmp_path / "store").as_uri()), new_nonce(), new_nonce()
    shared.say(other, "right")
    theirs = held(tmp_path / "store", of_bytes(bytes.fromhex(other.hex)).hex).read_bytes()
    shared.say(nonce, "right")
    own = held(tmp_path / "store", of_bytes(bytes.fromhex(nonce.hex)).hex)
    right = own.read_bytes()
    assert nonce.hex.encode() not in right
    for forged in (theirs, right.replace(b"right", b"wrong"), b"wrong", b""):
        own.write_bytes(forged)
        with pytest.raises(StorageError, match="not of the worker that was asked"):
            shared.heard(nonce)


@pytest.mark.parametrize("url", [None, "", "ftp://bucket", "file://host/x", "/folder"])
def test_without_a_shared_cache_nothing_begins(url: str | None) -> None:
    with pytest.raises(UsageError):
        blobs.shared(url)
