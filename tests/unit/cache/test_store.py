"""The cache as a build uses it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest

from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.location import Location
from epctx.cache.store import Cache, Shared, open_cache
from epctx.files import digest
from epctx.files.digest import Digest

KEY = digest.of_json({"v": 1})


@pytest.mark.needs("POSIX", "modes are POSIX's")
@pytest.mark.parametrize(
    "use",
    [
        lambda cache: cache.records.write("groups", KEY.hex, {}),
        lambda cache: cache.alone_on(KEY, lambda: None).__enter__(),
        lambda cache: cache.sweep(),
    ],
    ids=["a record", "an action", "a build"],
)
def test_whatever_comes_first_makes_the_folder_its_users_alone(
    cache: Cache, use: Callable[[Cache], object]
) -> None:
    before = os.umask(0o022)
    try:
        use(cache)
    finally:
        os.umask(before)
    for folder in (cache.location.folder, cache.location.root):
        assert not folder.exists() or folder.stat().st_mode & 0o777 == 0o700


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a test's action tells."""

    count: int
    where: Path


@dataclass(frozen=True, kw_only=True)
class OtherResult:
    """What another version's action tells."""

    names: tuple[str, ...]


RESULT = Result(count=3, where=Path("a/b"))


def make(folder: Path, **contents: bytes) -> tuple[StoredFile, ...]:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return tuple(
        StoredFile(name=name, size=len(content), digest=digest.of_bytes(content))
        for name, content in contents.items()
    )


def action(files: tuple[StoredFile, ...] = (), result: Result = RESULT) -> StoredAction[Result]:
    return StoredAction(kind="compile", record=msgspec.Raw(b'{"v":1}'), result=result, files=files)


@pytest.fixture
def made(cache: Cache, tmp_path: Path) -> StoredAction[Result]:
    folder = tmp_path / "made"
    made = action(make(folder, model=b"model" * 10_000, binary=b"binary" * 10_000))
    cache.put(KEY, made, folder)
    return made


def test_a_result_of_another_form_is_a_miss(
    cache: Cache, made: StoredAction[Result], notices: list[str]
) -> None:
    assert cache.find(KEY, OtherResult) is None
    assert notices == []


@pytest.mark.parametrize("damage", [b"", None, b"x" * 60_000])
def test_with_one_file_lost_or_corrupt_none_comes_back(
    cache: Cache,
    made: StoredAction[Result],
    tmp_path: Path,
    damage: bytes | None,
    notices: list[str],
) -> None:
    place = cache.objects.path(made.files[1].digest)
    place.unlink()
    if damage is not None:
        place.write_bytes(damage)
    (tmp_path / "target").mkdir()
    assert not cache.fetch(made, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    assert len(notices) == (damage is not None)
    cache.put(KEY, made, tmp_path / "made")
    assert cache.fetch(made, tmp_path / "target")


@pytest.mark.parametrize(
    "name", ["../out", "/out", "a/../../out", "c:out", "a\\..\\out", "", "a//b", "a\0b"]
)
def test_names_that_lead_out_of_the_folder_are_not_followed(
    cache: Cache, made: StoredAction[Result], tmp_path: Path, name: str
) -> None:
    stored = made.files[0]
    forged = action((StoredFile(name=name, size=stored.size, digest=stored.digest),))
    (tmp_path / "target").mkdir()
    assert not cache.fetch(forged, tmp_path / "target")
    assert list((tmp_path / "target").iterdir()) == []
    assert not (tmp_path / "out").exists()


def test_use_is_noted(cache: Cache, made: StoredAction[Result]) -> None:
    path = cache.records.path("actions", KEY.hex)
    os.utime(path, (0, 0))
    reader = Cache(Location(folder=cache.location.folder, readonly=True), lambda text: None)
    assert reader.find(KEY, Result) is not None
    assert path.stat().st_mtime == 0
    assert cache.find(KEY, Result) is not None
    assert path.stat().st_mtime > time.time() - 60


PUT = """
import sys
from pathlib import Path
import msgspec
from epctx.cache.location import Location
from epctx.cache.action import StoredAction, StoredFile
from epctx.cache.store import Cache
from epctx.files.digest import Digest, of_bytes, of_json

folder, made = Path(sys.argv[1]), Path(sys.argv[2])
cache = Cache(Location(folder=folder), print)
with cache.shared(lambda: None):
    for number in range(40):
        content = (made / str(number)).read_bytes()
        file = StoredFile(name=str(number), size=len(content), digest=of_bytes(content))
        record = msgspec.Raw(str(number).encode())
        action = StoredAction(kind="compile", record=record, result=number, files=(file,))
        cache.put(of_json(number), action, made)
        print(number, flush=True)
"""


def key(number: int) -> Digest:
    return digest.of_json(number)


def test_many_processes_write_the_same_at_once(cache: Cache, tmp_path: Path) -> None:
    make(tmp_path / "made", **{str(n): bytes([n]) * 50_000 for n in range(40)})
    args = [sys.executable, "-c", PUT, str(cache.location.folder), str(tmp_path / "made")]
    processes = [subprocess.Popen(args, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait() for process in processes] == [0] * 4
    for number in range(40):
        found = cache.find(key(number), int)
        assert found is not None and found.result == number
        assert cache.fetch(found, tmp_path / "target")
    assert len(list(cache.objects.all())) == 40
    assert list((cache.location.root / "temporary").iterdir()) == []


@pytest.mark.parametrize("after", [0, 3, 11, 25])
def test_a_killed_process_leaves_nothing_half(
    cache: Cache, notices: list[str], tmp_path: Path, after: int
) -> None:
    make(tmp_path / "made", **{str(n): bytes([n]) * 200_000 for n in range(40)})
    process = subprocess.Popen(
        [sys.executable, "-c", PUT, str(cache.location.folder), str(tmp_path / "made")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    for line in process.stdout:
        if int(line) == after:
            process.kill()
    process.wait()
    process.stdout.close()
    for number in range(40):
        found = cache.find(key(number), int)
        assert found is None or cache.fetch(found, tmp_path / "target")
        assert number > after or found is not None
    assert notices == []
    with cache.shared(lambda: None):
        cache.records.write("groups", KEY.hex, "anything")
    assert list((cache.location.root / "temporary").iterdir()) == []


def test_what_killed_processes_left_is_removed_though_nothing_is_stored(
    cache: Cache, location: Location
) -> None:
    folder = location.root / "temporary"
    (folder / "gone").mkdir(parents=True)
    (folder / "gone" / "0").write_bytes(b"half")
    (folder / "gone.lock").touch()
    cache.sweep()
    assert not any(folder.iterdir())


def test_a_cache_that_is_only_read_is_not_swept(location: Location) -> None:
    folder = location.root / "temporary"
    folder.mkdir(parents=True)
    (folder / "gone.lock").touch()
    Cache(dataclasses.replace(location, readonly=True), print).sweep()
    assert (folder / "gone.lock").exists()


def environment(folder: Path, **more: str) -> dict[str, str]:
    return {"EPCTX_CACHE_DIR": str(folder / "cache"), **more}


def test_trust_counts_without_a_shared_cache(tmp_path: Path) -> None:
    key = f"ci-1:{'A' * 43}="
    (tmp_path / "trust").write_text(key)
    told = environment(tmp_path, EPCTX_CACHE_TRUST="other-1:" + "A" * 43 + "=")
    assert open_cache(print, environment=told).trusts == ("other-1",)
    assert open_cache(print, Shared(trust=tmp_path / "trust"), environment=told).trusts == ("ci-1",)


def test_nothing_of_it_is_imported_before_it_is_needed(tmp_path: Path) -> None:
    program = (
        "import sys; from epctx.cache.store import open_cache;"
        "open_cache(print, environment=dict(EPCTX_CACHE_DIR=sys.argv[1], EPCTX_REMOTE_CACHE='s3://b',"
        " EPCTX_CACHE_SIGNING_KEY='k', EPCTX_CACHE_TRUST='t'));"
        "print([m for m in ('obstore', 'requests', 'cryptography') if m in sys.modules])"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert ran.stdout == "[]\n"


@pytest.mark.parametrize(
    ("shared", "said"),
    [
        (Shared(), 1),
        (Shared(jobs=True), 0),
        (Shared(url="file:///x", jobs=True), 1),
    ],
)
def test_a_store_of_jobs_needs_nobody_who_is_trusted(
    tmp_path: Path, shared: Shared, said: int
) -> None:
    """But one that the command line names as a cache does."""
    told: list[str] = []
    names = environment(tmp_path, EPCTX_REMOTE_CACHE="file:///x")
    cache = open_cache(told.append, shared, environment=names)
    assert cache.remote is not None and not cache.remote.reads
    assert len(told) == said
