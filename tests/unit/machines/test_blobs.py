from pathlib import Path

import pytest

from epctx.cache import Cache, Location
from epctx.errors import StorageError, UsageError
from epctx.files.digest import of_bytes
from epctx.machines import blobs
from tests.kit.stores import FolderStore


def test_a_content_goes_through_a_folder_that_both_see(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    here, there = (blobs.shared(f"file://{tmp_path.as_posix()}/sh%20ared") for _ in range(2))
    blob = here.put(tmp_path / "a")
    assert blob == blobs.Blob(digest=of_bytes(b"weights"), size=7)
    there.fetch(blob, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights" and (tmp_path / "sh ared").is_dir()


def test_what_is_not_there_or_another_is_told(tmp_path: Path) -> None:
    shared = blobs.at(tmp_path / "shared")
    (tmp_path / "a").write_bytes(b"weights")
    blob = shared.put(tmp_path / "a")
    (held,) = (path for path in (tmp_path / "shared").rglob(blob.digest.hex))
    held.chmod(0o644)
    held.write_bytes(b"weightx")
    for _ in range(2):
        with pytest.raises(StorageError, match="is not in what the machines share"):
            shared.fetch(blob, tmp_path / "b")
    with pytest.raises(StorageError, match="cannot be read"):
        shared.put(tmp_path / "none")


def test_what_a_store_gives_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    shared = blobs.StoreBlobs(FolderStore(tmp_path / "store"))
    blob = shared.put(tmp_path / "a")
    assert shared.put(tmp_path / "a") == blob
    (held,) = (path for path in (tmp_path / "store").rglob(blob.digest.hex))
    held.chmod(0o644)
    for content in (b"weightx", b"weight", b"weights and more"):
        held.write_bytes(content)
        with pytest.raises(StorageError, match="did not come through"):
            shared.fetch(blob, tmp_path / "b")
        assert not (tmp_path / "b").exists()
    held.unlink()
    with pytest.raises(StorageError, match="did not come through"):
        shared.fetch(blob, tmp_path / "b")


@pytest.mark.parametrize("url", [None, "", "ftp://bucket", "file://host/x", "/folder"])
def test_without_a_shared_cache_nothing_begins(url: str | None) -> None:
    with pytest.raises(UsageError):
        blobs.shared(url)


def test_this_machines_processes_use_its_cache_where_it_can_be_written(tmp_path: Path) -> None:
    for readonly in (False, True):
        cache = Cache(Location(folder=tmp_path / "cache", readonly=readonly), print)
        with blobs.local(cache) as (_, folder):
            assert (folder == tmp_path / "cache") is not readonly
    with blobs.local(None) as (_, folder):
        assert folder.is_dir()
    assert not folder.exists()
