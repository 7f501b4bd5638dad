from __future__ import annotations

import json
import os
import time
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from epctx import lockfile as locks
from epctx.cache import Cache, Location, StoredAction, StoredFile, locate
from epctx.cli.app import app
from epctx.cli.declared import age, size
from epctx.errors import UsageError
from epctx.files import digest
from epctx.files.digest import Digest
from epctx.lockfile.types import Lock, LockedGroup, LockedSession
from epctx.manifest import PartitionSettings


def run(*args: str | Path) -> Result:
    return CliRunner().invoke(app, ["cache", *map(str, args)])


def put(name: str, content: bytes, folder: Path, days: float = 0) -> Digest:
    """An action used last some days ago, in the cache that the command will find."""
    cache, key = Cache(locate(), print), digest.of_json([name])
    record = msgspec.Raw(msgspec.json.encode([name]))
    (folder / name).write_bytes(content)
    file = StoredFile(name=name, size=len(content), digest=digest.of_bytes(content))
    action = StoredAction(kind="compile", record=record, result=name, files=(file,))
    cache.put(key, action, folder)
    used = time.time() - days * 86_400
    os.utime(cache.records.path("actions", key.hex), (used, used))
    cache.close()
    return key


def there(key: Digest) -> bool:
    """Without a trace: what is found was of use."""
    location = Location(folder=locate().folder, readonly=True)
    return Cache(location, print).find(key, str) is not None


def lock_of(key: Digest, path: Path) -> Path:
    session = LockedSession(cpu=None, key=str(key), models=("m",), outputs={}, sharing=None)
    partition = PartitionSettings(
        exclude_nodes=(),
        exclude_op_types=(),
        max_partitions=None,
        min_nodes=1,
        require_coverage=None,
    )
    group = LockedGroup(
        embed_mode=0,
        execution_providers=(),
        external_initializers=None,
        models={},
        node_name_prefix="",
        optimize="basic",
        partition=partition,
        passes=(),
        passes_of_others={},
        session_groups={"m": session},
        session_options={},
    )
    lock = Lock(
        name="n", toolchain={}, sources={}, execution_providers={}, groups={"default/g": group}
    )
    path.write_text(locks.text(lock), encoding="utf-8")
    return path


def test_info_of_a_cache_that_is_not_there_yet(tmp_path: Path) -> None:
    result = run("info")
    assert result.exit_code == 0
    assert str(locate().folder) in result.stdout
    assert not locate().folder.exists()


def test_info_in_words_and_as_json(tmp_path: Path) -> None:
    put("a", b"x" * 1500, tmp_path)
    assert (
        "0 optimize, 0 calibrate, 0 quantize, 1 compile, 0 recording, 0 verify"
        in run("info").stdout
    )
    assert "1, 1.5 kB" in run("info").stdout
    told = json.loads(run("info", "--format", "json").stdout)
    kinds = ("optimize", "calibrate", "quantize", "compile", "recording", "verify", "compose")
    assert told["actions"] == dict.fromkeys(kinds, 0) | {"compile": 1}
    assert (told["objects"], told["size"], told["readonly"]) == (1, 1500, False)


def test_gc_keeps_what_lock_files_reach(tmp_path: Path) -> None:
    kept, gone = put("kept", b"1", tmp_path), put("gone", b"22", tmp_path)
    lock = lock_of(kept, tmp_path / "m.lock.yaml")
    assert "would remove 1 actions, 1 objects (2 bytes)" in run("gc", lock, "--dry-run").stdout
    assert there(gone)
    told = json.loads(run("gc", lock, "--format", "json").stdout)
    assert (told["actions"], told["objects"], told["size"], told["kept"]) == (1, 1, 2, 1)
    assert (there(kept), there(gone)) == (True, False)


def test_gc_by_age_and_size(tmp_path: Path) -> None:
    keys = [put(str(n), bytes([n]) * 1000, tmp_path, days=n) for n in range(4)]
    assert run("gc", "--older-than", "60h").exit_code == 0
    assert [there(key) for key in keys] == [True, True, True, False]
    assert run("gc", "--max-size", "2kB").exit_code == 0
    assert [there(key) for key in keys] == [True, True, False, False]


def test_gc_of_a_read_only_cache_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EPCTX_CACHE_READONLY", "1")
    result = run("gc")
    assert result.exit_code == 2
    assert "unset EPCTX_CACHE_READONLY" in result.stderr


def test_gc_with_what_is_no_lock(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text("models: {}\n")
    result = run("gc", tmp_path / "m.yaml")
    assert result.exit_code == 8


def test_verify_names_what_is_corrupt_and_it_is_gone_then(tmp_path: Path) -> None:
    key = put("a", b"content", tmp_path)
    result = run("verify")
    assert (result.exit_code, result.stdout) == (0, "read 1 objects (7 bytes), 1 records\n")
    place = Cache(locate(), print).objects.path(digest.of_bytes(b"content"))
    place.unlink()
    place.write_bytes(b"Content")
    result = run("verify")
    assert result.exit_code == 9
    assert f"objects/{place.name}" in "".join(result.stderr.split())
    assert "check the disk" in " ".join(result.stderr.split())
    again = run("verify")
    assert again.exit_code == 0
    assert "1 actions have missing files" in again.stdout
    assert there(key)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10GB", 10**10),
        ("500MiB", 500 << 20),
        ("1.5k", 1500),
        ("7", 7),
        ("0", 0),
        ("2 TB", 2 * 10**12),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "1 PB", "-1", "1i", "1e3"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="is not a size"):
        size(text)


def test_ages() -> None:
    assert [age(text) for text in ("30d", "12h", "2w", "0s", "1.5m")] == [
        2_592_000, 43_200, 1_209_600, 0, 90,
    ]  # fmt: skip
    for text in ("30", "d", "-1d", "1y"):
        with pytest.raises(UsageError, match="is not an age"):
            age(text)
