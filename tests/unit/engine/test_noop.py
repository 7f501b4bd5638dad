"""The note of a build that had nothing to do: right or useless."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import blake3
import pytest

from epctx.cache import Cache, Location, locate
from epctx.engine import noop
from epctx.engine.noop import Watched, recall
from epctx.files import identity
from tests.kit.mapping import written_map

pytestmark = pytest.mark.needs("Linux", "it is an answer on Linux only")
ARGUMENTS = ["build", "m.yaml"]
SAYS = ["nothing to do", "dist/m/"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a file, a link to a file, and a folder; it is the current one."""
    folder = tmp_path / "project"
    (folder / "sub").mkdir(parents=True)
    for name in ("file", "linked", "sub/inner"):
        (folder / name).write_text(name)
    (folder / "link").symlink_to("linked")
    monkeypatch.chdir(folder)
    monkeypatch.setattr(noop, "_asked", None)
    return folder


@pytest.fixture
def settled(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if all files were written some seconds ago."""
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 10)
    # Where the tests' own folder is on a tmpfs, no note would be left at all.
    monkeypatch.setattr(identity, "tells", lambda path, text: True)


def leave(*paths: str, absent: str = "staging") -> bool:
    """Look at some paths and leave a note; whether there is one."""
    cache = Cache(locate(), print)
    recall(ARGUMENTS)
    watched = Watched()
    watched.note(paths or ("file", "link", "sub", "sub/inner", "not there"))
    watched.absent(Path(absent))
    watched.remember(cache.records, SAYS)
    cache.close()
    return list(cache.records.names("unchanged")) != []


@pytest.mark.usefixtures("folder", "settled")
def test_the_same_again_says_the_same() -> None:
    assert recall(ARGUMENTS) is None
    assert leave()
    assert recall(ARGUMENTS) == SAYS
    assert recall(ARGUMENTS) == SAYS


def restored(path: Path, content: str) -> None:
    before = path.stat()
    path.write_text(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def same_size_and_time(folder: Path) -> None:
    restored(folder / "file", "FILE")


def behind_a_link(folder: Path) -> None:
    restored(folder / "linked", "LINKED")


def another_link(folder: Path) -> None:
    (folder / "link").unlink()
    (folder / "link").symlink_to("file")


def another_file_in_its_place(folder: Path) -> None:
    (folder / "new").write_text("file")
    (folder / "new").replace(folder / "file")


def gone(folder: Path) -> None:
    (folder / "file").unlink()


def new_entry(folder: Path) -> None:
    (folder / "sub" / "new").touch()


def entry_gone(folder: Path) -> None:
    (folder / "sub" / "inner").unlink()


def there_after_all(folder: Path) -> None:
    (folder / "not there").touch()


def staging(folder: Path) -> None:
    (folder / "staging").mkdir()


def mode(folder: Path) -> None:
    (folder / "file").chmod(0o600)


@pytest.mark.usefixtures("settled")
@pytest.mark.parametrize(
    "change",
    [
        same_size_and_time,
        behind_a_link,
        another_link,
        another_file_in_its_place,
        gone,
        new_entry,
        entry_gone,
        there_after_all,
        staging,
        mode,
    ],
    ids=lambda change: change.__name__,
)
def test_any_change_is_looked_at_properly(folder: Path, change: Callable[[Path], None]) -> None:
    assert leave()
    assert recall(ARGUMENTS) == SAYS
    change(folder)
    assert recall(ARGUMENTS) is None


@pytest.mark.usefixtures("folder", "settled")
@pytest.mark.parametrize(
    "arguments",
    [["build", "other.yaml"], ["build", "m.yaml", "--locked"], ["verify", "m.yaml"], [], ["build"]],
)
def test_another_command_is_looked_at_properly(arguments: list[str]) -> None:
    assert leave()
    assert recall(arguments) is None


@pytest.mark.usefixtures("settled")
def test_another_folder_is_looked_at_properly(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert leave()
    monkeypatch.chdir(folder / "sub")
    assert recall(ARGUMENTS) is None


@pytest.mark.usefixtures("folder", "settled")
def test_another_python_or_environment_is_looked_at_properly(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    assert leave()
    with monkeypatch.context() as patch:
        patch.syspath_prepend(tmp_path)
        assert recall(ARGUMENTS) is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "version", "3.99")
        assert recall(ARGUMENTS) is None
    with monkeypatch.context() as patch:
        patch.setenv("SOME_SDK_ROOT", "/opt/sdk")
        assert recall(ARGUMENTS) is None
    with monkeypatch.context() as patch:
        patch.setenv("SHLVL", "99")
        patch.setenv("COLUMNS", "99")
        assert recall(ARGUMENTS) == SAYS
    with monkeypatch.context() as patch:
        boot = tmp_path / "boot_id"
        boot.write_text("another start of this or another computer")
        patch.setattr(noop, "_BOOT", boot)
        assert recall(ARGUMENTS) is None
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        assert recall(ARGUMENTS) is None
    with monkeypatch.context() as patch:
        patch.setenv("EPCTX_CACHE_READONLY", "perhaps")
        assert recall(ARGUMENTS) is None
    assert recall(ARGUMENTS) == SAYS


@pytest.mark.usefixtures("folder", "settled")
def test_a_report_tells_when_it_was_asked_for() -> None:
    report = {
        "groups": [{"started": "inside", "seconds": 7.5, "detail": '\n  "seconds": 1'}],
        "name": "m",
        "seconds": 12.345,
        "started": "2020-01-01T00:00:00+00:00",
    }
    cache = Cache(locate(), print)
    recall(ARGUMENTS)
    watched = Watched()
    watched.note(["file"])
    watched.remember(cache.records, json.dumps(report, indent=2).splitlines(), report=True)
    cache.close()
    said = recall(ARGUMENTS)
    assert said is not None
    told = json.loads("\n".join(said))
    assert datetime.now(UTC) - datetime.fromisoformat(told.pop("started")) < timedelta(seconds=20)
    assert 0 <= told.pop("seconds") < 5
    del report["seconds"], report["started"]
    assert told == report


@pytest.mark.usefixtures("folder", "settled")
def test_a_note_ends_after_a_day(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leave()
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + 86_390)
    assert recall(ARGUMENTS) == SAYS
    monkeypatch.setattr(time, "time", lambda: now() + 86_410)
    assert recall(ARGUMENTS) is None


@pytest.mark.usefixtures("folder", "settled")
def test_a_flipped_bit_anywhere_is_looked_at_properly() -> None:
    assert leave()
    cache = Cache(locate(), print)
    (name,) = cache.records.names("unchanged")
    path = cache.records.path("unchanged", name)
    content = path.read_bytes()
    for position in [*range(0, len(content), 7), len(content) - 1]:
        if position != 64:  # the line break after the digest says nothing
            path.write_bytes(
                content[:position] + bytes([content[position] ^ 1]) + content[position + 1 :]
            )
            assert recall(ARGUMENTS) is None, position
    for other in (b"", content[:70], json.dumps({"version": 1}).encode()):
        path.write_bytes(other)
        assert recall(ARGUMENTS) is None
    path.write_bytes(content)
    assert recall(ARGUMENTS) == SAYS


@pytest.mark.usefixtures("folder", "settled")
def test_a_note_of_another_version_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    assert leave()
    monkeypatch.setattr(noop, "VERSION", noop.VERSION + 1)
    assert recall(ARGUMENTS) is None


@pytest.mark.usefixtures("folder")
def test_no_note_is_left_while_something_could_still_change_unseen() -> None:
    assert not leave()


@pytest.mark.usefixtures("folder", "settled")
def test_no_note_is_left_of_a_file_system_that_does_not_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(identity, "tells", lambda path, text: path != "sub/inner")
    assert not leave()


@pytest.mark.usefixtures("settled")
@pytest.mark.needs("file systems that tell of each write")
def test_a_map_of_a_file_that_is_read_can_be_written_to_before_not_unseen(folder: Path) -> None:
    """As of the manifest and the lock, which nobody digests."""
    cache = Cache(locate(), print)
    recall(ARGUMENTS)
    with written_map(folder / "file") as file, written_map(folder / "linked") as linked:
        for mapped in (file, linked):
            watched = Watched()
            watched.read(folder / "link", folder / "file")
            watched.remember(cache.records, SAYS)
            assert recall(ARGUMENTS) == SAYS
            mapped[:1] = b"X"
            assert recall(ARGUMENTS) is None
    cache.close()


@pytest.mark.usefixtures("folder", "settled")
def test_a_note_has_no_text_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_TOKEN", "hunter2-hunter2")
    monkeypatch.syspath_prepend("/hunter2-hunter2")
    assert leave()
    kept = [path for path in locate().folder.rglob("*") if path.is_file()]
    assert any(path.parent.parent.name == "unchanged" for path in kept)
    assert not any(b"hunter2" in path.read_bytes() for path in kept)


@pytest.mark.usefixtures("folder", "settled")
def test_no_digest_in_a_note_can_be_tried_without_the_systems_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As one could who gets a cache that was uploaded and guesses a short password."""
    before = noop.surroundings()
    monkeypatch.setattr(noop, "_BOOT", tmp_path / "boot_id")
    noop._BOOT.write_text("the same computer, started again")
    assert noop.surroundings() != before
    noop._BOOT.unlink()
    assert not leave()


@pytest.mark.usefixtures("folder", "settled")
def test_no_note_is_left_of_what_has_no_stamp() -> None:
    cache = Cache(locate(), print)
    recall(ARGUMENTS)
    watched = Watched()
    watched.give_up()
    watched.remember(cache.records, SAYS)
    assert list(cache.records.names("unchanged")) == []


@pytest.mark.usefixtures("folder", "settled")
def test_no_note_is_left_by_who_is_not_the_command() -> None:
    cache = Cache(locate(), print)
    watched = Watched()
    watched.note(["file"])
    watched.remember(cache.records, SAYS)
    assert list(cache.records.names("unchanged")) == []


@pytest.mark.usefixtures("folder", "settled")
def test_a_read_only_cache_gets_no_note() -> None:
    cache = Cache(Location(folder=locate().folder, readonly=True), print)
    recall(ARGUMENTS)
    watched = Watched()
    watched.note(["file"])
    watched.remember(cache.records, SAYS)
    assert not locate().folder.exists()


@pytest.mark.usefixtures("settled")
def test_of_a_folder_everything_below_is_looked_at(folder: Path) -> None:
    """As of the assets of a package: the lock has their digests."""
    (folder / "asset" / "deep").mkdir(parents=True)
    (folder / "asset" / "deep" / "vocab.txt").write_text("words")
    cache = Cache(locate(), print)
    recall(ARGUMENTS)
    watched = Watched()
    watched.read(folder / "asset")
    watched.read(folder / "file")
    watched.remember(cache.records, SAYS)
    cache.close()
    assert recall(ARGUMENTS) == SAYS
    (folder / "asset" / "deep" / "vocab.txt").write_text("other")
    assert recall(ARGUMENTS) is None


@pytest.mark.usefixtures("settled")
def test_code_is_every_file_of_a_package_and_where_python_looks(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    package = folder / "package"
    (package / "deep" / "__pycache__").mkdir(parents=True)
    (package / "deep" / "module.py").write_text("x = 1")
    place = tmp_path / "site-packages"
    place.mkdir()
    monkeypatch.setattr(sys, "path", [str(place)])

    def left() -> bool:
        cache = Cache(locate(), print)
        recall(ARGUMENTS)
        watched = Watched()
        watched.code(package)
        watched.remember(cache.records, SAYS)
        cache.close()
        return recall(ARGUMENTS) == SAYS

    for change in (
        lambda: (package / "deep" / "module.py").write_text("x = 2"),
        lambda: (package / "deep" / "new.py").touch(),
        lambda: (package / "other").mkdir(),
        lambda: (place / "new-1.0.dist-info").mkdir(),
    ):
        assert left()
        change()
        assert recall(ARGUMENTS) is None
    assert left()
    (package / "deep" / "__pycache__" / "module.pyc").touch()
    assert recall(ARGUMENTS) == SAYS


def test_it_imports_nothing_that_a_build_needs() -> None:
    import subprocess

    code = (
        "import sys; from epctx.engine import noop; noop.recall(['build', 'm.yaml']);"
        "print(*[m for m in ('msgspec', 'typer', 'yaml', 'rich', 'filelock', 'sqlite3',"
        "'importlib.metadata', 'epctx.engine.build', 'epctx.manifest') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == ("", "")


@pytest.mark.usefixtures("folder", "settled")
@pytest.mark.parametrize(
    "change",
    [{"paths": ["file"]}, {"absent": 1}, {"says": ["\ud800"]}, {"says": 1}, {"until": "late"}],
    ids=lambda change: next(iter(change)),
)
def test_a_note_of_another_form_with_a_right_sum_is_none(change: dict[str, object]) -> None:
    """As one could put there who may write to the cache: never an error."""
    assert leave()
    cache = Cache(locate(), print)
    (name,) = cache.records.names("unchanged")
    path = cache.records.path("unchanged", name)
    note = json.dumps(json.loads(path.read_bytes()[65:]) | change).encode()
    whole = blake3.blake3(f"unchanged/{name}\n".encode() + note).hexdigest().encode()
    path.write_bytes(whole + b"\n" + note)
    assert recall(ARGUMENTS) is None
