"""`epctx pull`: whole or not at all."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from types import SimpleNamespace

import pytest

from epctx import api
from epctx.commands import pull
from epctx.errors import StorageError, VerificationError
from epctx.files import digest
from epctx.oci import artifact
from epctx.oci.artifact import Damaged
from epctx.transfer.attempts import StoreError
from tests.kit import command_line, pushed, registries, small_registry


def test_what_is_there_is_not_pulled_again(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"same", b_bin=b"same")
    (folder / "model.sig").write_bytes(b"sig")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        digest = api.push(folder, name, insecure=True).digest
        (tmp_path / "got").mkdir()
        first = api.pull(name, tmp_path / "got", insecure=True)
        assert (first.state, first.files, first.digest) == ("pulled", 3, digest)
        (tmp_path / "got" / "model.sig").unlink()
        again = api.pull(name, tmp_path / "got", insecure=True)
        assert (again.state, again.attached) == ("up to date", ("model.sig",))
        assert (tmp_path / "got" / "model.sig").read_bytes() == b"sig"
    assert (tmp_path / "got" / "default" / "main" / "b.bin").read_bytes() == b"same"
    assert first.attached == ("model.sig",)


def test_what_is_said_of_a_package_is_held_to_its_digest(tmp_path: Path) -> None:
    folder = pushed.group(tmp_path, a_bin=b"same")
    (folder / "model.sig").write_bytes(b"sig")
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        api.push(folder, name, insecure=True)
        server.blobs[str(digest.of_bytes(b"sig", "sha256"))] = b"gis"
        with pytest.raises(VerificationError, match="does not match its digest"):
            api.pull(name, tmp_path / "got", insecure=True)
    assert not (tmp_path / "got").exists()


def test_what_has_no_room_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pushed.group(tmp_path, a_bin=b"same" * 1000)
    with small_registry.running() as server:
        name = registries.reference(server.server_port, "some/model")
        api.push(folder, name, insecure=True)
        monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=100))
        with pytest.raises(StorageError, match="are needed"):
            api.pull(name, tmp_path / "got", insecure=True)
    assert not (tmp_path / "got").exists()


@pytest.mark.parametrize(
    ("files", "told"),
    [
        (("x.",), "'x.' is no name of a file there"),
        (("a/x ",), "'x ' is no name of a file there"),
        (("con/b",), "'con' is no name of a file there"),
        (("a/NUL.txt",), "'NUL.txt' is no name of a file there"),
        (("a?b",), "'a?b' is no name of a file there"),
        (("A/b", "a/c"), "'A' and 'a' are one there"),
        (("com.bin", "a/.hidden", "a/b c", "A.b/ü"), None),
    ],
)
def test_names_that_windows_cannot_hold(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: tuple[str, ...], told: str | None
) -> None:
    """Refused there, a warning elsewhere; `a:b`, and files that differ by case, are refused
    everywhere.
    """
    blob = artifact.blob_of(b"same")
    made = artifact.package(dict.fromkeys(files, blob))
    with small_registry.running() as server:
        server.manifests |= {"v1": made.manifest, str(made.digest): made.manifest}
        server.blobs |= {str(blob.digest): b"same"}
        name = registries.reference(server.server_port, "some/model")
        ran = command_line.inside("pull", name, "got", "--insecure", cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert ("cannot be pulled on Windows" in ran.stderr) is bool(told)
        assert told is None or told in ran.stderr
        monkeypatch.setattr(pull, "sys", SimpleNamespace(platform="win32"))
        if told is None:
            assert api.pull(name, tmp_path / "w", insecure=True).not_on_windows is None
            return
        with pytest.raises(VerificationError, match="has cannot be stored on Windows: ") as refused:
            api.pull(name, tmp_path / "w", insecure=True)
        assert refused.value.exit_code == 7 and told in str(refused.value)
    assert not (tmp_path / "w").exists()


def test_two_do_not_pull_into_one_folder(tmp_path: Path) -> None:
    target = tmp_path / "got"
    with (
        pull.working(target),
        pytest.raises(StorageError, match="another command"),
        pull.working(target),
    ):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [StoreError("is slow"), KeyboardInterrupt()])
def test_it_stays_when_the_rest_may_come_another_time(error: BaseException, tmp_path: Path) -> None:
    with pytest.raises(type(error)), pull.working(tmp_path / "got") as work:
        (work / "half").write_bytes(b"half")
        raise error
    with pull.working(tmp_path / "got") as work:
        assert (work / "half").read_bytes() == b"half"


@pytest.mark.parametrize(
    "error",
    [
        Damaged("does not match its digest"),
        StoreError("wants another password", lasting=True),
        StorageError("is full", remedy="free some space"),
    ],
)
def test_nothing_stays_when_the_pull_fails_for_good(error: Exception, tmp_path: Path) -> None:
    with pytest.raises(type(error)), pull.working(tmp_path / "got") as work:
        (work / "half").write_bytes(b"half")
        raise error
    assert not list(tmp_path.iterdir())


@pytest.mark.needs("POSIX", "modes")
def test_its_folder_is_the_users_alone(tmp_path: Path) -> None:
    with pull.working(tmp_path / "got") as work:
        assert stat.S_IMODE(work.stat().st_mode) == 0o700


@pytest.mark.needs("links", "one is in the way")
def test_a_link_in_its_place_is_not_adopted(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / ".got.pulling").symlink_to(tmp_path / "other")
    with pytest.raises(StorageError, match="is a link"), pull.working(tmp_path / "got"):
        pass
    assert not list((tmp_path / "other").iterdir())
