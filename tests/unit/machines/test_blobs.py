import os
from pathlib import Path

import pytest

from epctx.errors import StorageError, UsageError
from epctx.files.digest import of_bytes
from epctx.machines import blobs
from epctx.machines.cluster import new_nonce


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
    for content in (b"weightx", b"weight", b"weights and more"):
        there.write_bytes(content)
        with pytest.raises(StorageError, match="did not come through"):
            shared.fetch(blob, tmp_path / "b")
        assert not (tmp_path / "b").exists()
    there.unlink()
    with pytest.raises(StorageError, match="did not come through"):
        shared.fetch(blob, tmp_path / "b")


def test_what_was_fetched_is_not_fetched_again_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = blobs.shared((tmp_path / "store").as_uri(), tmp_path / "kept")
    shared.tidy()
    found = []
    for number, name in enumerate("ab"):
        (tmp_path / name).write_bytes(name.encode() * 9)
        found.append(shared.put(tmp_path / name))
        shared.fetch(found[-1], tmp_path / f"{name}1")
        os.utime(tmp_path / "kept" / found[-1].digest.hex, (number, number))
        held(tmp_path / "store", found[-1].digest.hex).unlink()
    for name, blob in zip("ab", found, strict=True):
        shared.fetch(blob, tmp_path / f"{name}2")
        assert (tmp_path / f"{name}2").read_bytes() == name.encode() * 9
    monkeypatch.setattr(blobs, "_KEPT", 10)
    shared.tidy()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == [found[1].digest.hex]


def test_an_answer_is_heard_until_it_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared, nonce = blobs.shared((tmp_path / "store").as_uri()), new_nonce()
    shared.say(nonce, "Jürgen")
    assert shared.heard(nonce) == "Jürgen"
    monkeypatch.setenv("EPCTX_LIMIT_MACHINE_JOB", "3")
    with pytest.raises(StorageError, match="at most 3"):
        shared.heard(nonce)
    shared.forget([nonce, new_nonce()])
    with pytest.raises(StorageError, match="there is no answer"):
        shared.heard(nonce)


@pytest.mark.parametrize("url", [None, "", "ftp://bucket", "file://host/x", "/folder"])
def test_without_a_shared_cache_nothing_begins(url: str | None) -> None:
    with pytest.raises(UsageError):
        blobs.shared(url)
