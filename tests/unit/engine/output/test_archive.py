"""The archive of a release: the same bytes for the same files, and only what was built."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from epctx.engine.output import archive
from epctx.errors import StorageError
from epctx.files import digest
from epctx.lockfile.types import LockedFile

CONTENTS: Mapping[str, bytes] = {
    "default/llm/SHA256SUMS": b"sums",
    "default/llm/a_ctx.onnx": b"a" * 5000,
    "default/llm/golden/a.npz": b"",
    "other/" + "deep-" * 30 + "/" + "name-" * 30: b"a name beyond what ustar holds",
}


def put(root: Path, contents: Mapping[str, bytes]) -> dict[str, LockedFile]:
    files = {}
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        sha256 = digest.of_bytes(content, "sha256").hex
        files[name] = LockedFile(sha256=sha256, size=len(content))
    return files


def test_it_has_all_files_below_one_folder_and_nothing_of_this_host(tmp_path: Path) -> None:
    files = put(tmp_path / "m", CONTENTS)
    archive.write(tmp_path / "m.tar", tmp_path / "m", files)
    with tarfile.open(tmp_path / "m.tar") as opened:
        entries = opened.getmembers()
        assert {(e.uid, e.gid, e.uname, e.gname, e.mtime) for e in entries} == {(0, 0, "", "", 0)}
        assert {(e.isdir(), e.mode) for e in entries} == {(True, 0o755), (False, 0o644)}
        opened.extractall(tmp_path / "out", filter="data")
    found = {
        path.relative_to(tmp_path / "out" / "m").as_posix(): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert found == dict(CONTENTS)


@pytest.mark.parametrize("content", [b"b" * 5000, b"a" * 4999, b"a" * 5001, None])
def test_what_is_not_what_was_built_is_refused(tmp_path: Path, content: bytes | None) -> None:
    files = put(tmp_path / "m", CONTENTS)
    path = tmp_path / "m" / "default/llm/a_ctx.onnx"
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    (tmp_path / "m.tar").write_bytes(b"the last one")
    with pytest.raises(StorageError, match="was changed after it was built"):
        archive.write(tmp_path / "m.tar", tmp_path / "m", files)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m", "m.tar"]
    assert (tmp_path / "m.tar").read_bytes() == b"the last one"


GOLDEN = ("default/llm/golden",)


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, dict[str, LockedFile]]:
    files = put(tmp_path / "m", CONTENTS)
    archive.write(tmp_path / "m.tar", tmp_path / "m", files)
    return tmp_path / "m.tar", files


def test_golden_files_may_be_left_out_as_a_whole(
    made: tuple[Path, dict[str, LockedFile]], tmp_path: Path
) -> None:
    path, files = made
    without = {name: file for name, file in files.items() if "golden" not in name}
    archive.write(path, tmp_path / "m", without)
    assert archive.fault(path, "m", files, GOLDEN) is None
    assert archive.fault(path, "m", files, ()) == (
        "has something else where m/default/llm/golden/ should be"
    )


def test_no_bit_of_an_archive_is_another(made: tuple[Path, dict[str, LockedFile]]) -> None:
    """Of headers, padding and the end as of what the files hold."""
    path, files = made
    content = path.read_bytes()
    for place in range(0, len(content), 97):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        assert archive.fault(path, "m", files, GOLDEN) is not None, place


@pytest.mark.parametrize("change", [lambda c: c + b"\0", lambda c: c[:-1], lambda c: c * 2, len])
def test_an_archive_ends_where_it_must(
    made: tuple[Path, dict[str, LockedFile]], change: Callable[[bytes], object]
) -> None:
    path, files = made
    changed = change(path.read_bytes())
    path.write_bytes(changed if isinstance(changed, bytes) else b"")
    assert archive.fault(path, "m", files, GOLDEN) is not None


def test_a_member_too_many_or_too_few_is_a_fault(
    made: tuple[Path, dict[str, LockedFile]], tmp_path: Path
) -> None:
    path, files = made
    put(tmp_path / "m", {"default/llm/run.sh": b"echo"})
    extra = LockedFile(sha256=digest.of_bytes(b"echo", "sha256").hex, size=4)
    assert archive.fault(path, "m", {**files, "default/llm/run.sh": extra}, GOLDEN) is not None
    archive.write(path, tmp_path / "m", {**files, "default/llm/run.sh": extra})
    assert archive.fault(path, "m", files, GOLDEN) is not None
