"""The archive of a release: the same bytes for the same files, and only what was built."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from epctx.engine.output import archive
from epctx.errors import StorageError
from epctx.files import digest
from epctx.files.outputs import OutputFile

CONTENTS: Mapping[str, bytes] = {
    "default/llm/SHA256SUMS": b"sums",
    "default/llm/a_ctx.onnx": b"a" * 5000,
    "default/llm/golden/a.npz": b"",
    "other/" + "deep-" * 30 + "/" + "name-" * 30: b"a name beyond what ustar holds",
}


def put(root: Path, contents: Mapping[str, bytes]) -> dict[str, OutputFile]:
    files = {}
    for name, content in contents.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files[name] = OutputFile(
            name=path.name,
            size=len(content),
            sha256=digest.of_bytes(content, "sha256"),
            blake3=digest.of_bytes(content),
        )
    return files


def test_the_same_files_are_the_same_archive(tmp_path: Path) -> None:
    one, two = tmp_path / "one" / "m", tmp_path / "two" / "m"
    files = put(one, CONTENTS)
    put(two, dict(reversed(list(CONTENTS.items()))))
    os.utime(two / "default/llm/a_ctx.onnx", (1, 1))
    (two / "default/llm/a_ctx.onnx").chmod(0o600)
    first = archive.write(tmp_path / "one.tar", one, files)
    second = archive.write(tmp_path / "two.tar", two, dict(reversed(files.items())))
    assert (tmp_path / "one.tar").read_bytes() == (tmp_path / "two.tar").read_bytes()
    assert first.sha256 == second.sha256 == digest.of_file(tmp_path / "one.tar", "sha256")
    assert first.size == (tmp_path / "one.tar").stat().st_size


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
