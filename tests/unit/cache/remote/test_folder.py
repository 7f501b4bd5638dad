"""A shared folder: modes, what is not whole, other processes. See tests/faults, too."""

import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from epctx.cache.remote.folder import FolderStore
from epctx.transfer.attempts import StoreError

NAME = f"v1/objects/{'a' * 64}"


@pytest.mark.needs("POSIX", "modes are POSIX's")
def test_who_may_read_the_folder_may_read_what_is_in_it(tmp_path: Path) -> None:
    share = tmp_path / "share"
    share.mkdir()
    share.chmod(0o2770)
    (tmp_path / "blob").write_bytes(b"x")
    (tmp_path / "blob").chmod(0o600)
    before = os.umask(0o077)
    try:
        FolderStore("", share).upload(NAME, tmp_path / "blob")
    finally:
        os.umask(before)
    assert stat.S_IMODE((share / NAME).stat().st_mode) == 0o440
    assert stat.S_IMODE((share / "v1" / "objects").stat().st_mode) == 0o2770


def test_what_was_not_finished_is_no_blob_and_goes_after_a_day(tmp_path: Path) -> None:
    store = FolderStore("", tmp_path)
    store.write(NAME, b"x")
    old, new = (tmp_path / "v1" / "objects" / f".unfinished-{each}" for each in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"")
    os.utime(old, (0, time.time() - 90_000))
    assert [each.name for each in store.list("v1/")] == [NAME]
    store.delete([])
    assert new.exists() and not old.exists()


def test_a_blob_that_vanishes_does_not_end_the_listing(tmp_path: Path) -> None:
    store = FolderStore("", tmp_path)
    for letter in "abc":
        store.write(f"v1/objects/{letter * 64}", b"x")
    folder = tmp_path / "v1" / "objects"
    first, second, third = (entry.name for entry in os.scandir(folder))
    listing = store.list("v1/")
    assert next(listing).name == f"v1/objects/{first}"
    (folder / second).unlink()
    assert [each.name for each in listing] == [f"v1/objects/{third}"]


def test_an_upload_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = FolderStore("", tmp_path / "share")
    with pytest.raises(StoreError, match="the system says"):
        store.upload(NAME, tmp_path / "missing")
    (tmp_path / "share").write_bytes(b"a file")
    with pytest.raises(StoreError):
        store.write(NAME, b"x")
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["share"]


def test_two_processes_put_the_same_blobs(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from epctx.cache.remote.folder import FolderStore\n"
        "store = FolderStore('', Path(sys.argv[1]))\n"
        "for each in range(200): store.write(f'v1/objects/{each:064x}', b'%064d' % each)\n"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "share")]
    both = [subprocess.Popen(command) for _ in range(2)]
    assert [each.wait() for each in both] == [0, 0]
    store = FolderStore("", tmp_path / "share")
    assert sum(each.size for each in store.list("v1/objects/")) == 200 * 64
    assert store.read(f"v1/objects/{7:064x}", 64) == b"%064d" % 7
    assert len(list((tmp_path / "share" / "v1" / "objects").iterdir())) == 200
