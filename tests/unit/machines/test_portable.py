"""Files of jobs: packing, layout on another machine, and the shared store."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.actions.run_models import RunSource
from epctx.errors import CompileError, StorageError, UsageError
from epctx.files.digest import of_bytes
from epctx.machines import portable
from epctx.machines.portable import Blobs, Files, Placed, moved_in, new_nonce, pack
from epctx.manifest import ModelSource, OptimizeSettings, ProviderSpec, Reference, VerifyInputs
from tests.kit.building import mlp


@pytest.fixture
def shared(tmp_path: Path) -> Blobs:
    return portable.shared((tmp_path / "shared").as_uri())


def model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    onnx.save(
        mlp(seed=0, width=32),
        folder / "a.onnx",
        save_as_external_data=True,
        location="a.data",
        size_threshold=0,
    )
    (folder / "secret").write_bytes(b"not asked for")
    return folder / "a.onnx"


def job(folder: Path) -> Optimize:
    path = model(folder / "m")
    reference = Reference(path=path)
    return Optimize.of(
        ModelSource(name="a", path=path, reference=reference), OptimizeSettings(), folder / "new"
    )


def placed(files: Files, home: Path, shared: Blobs) -> Placed:
    found = Placed(msgspec.json.decode(msgspec.json.encode(files), type=Files), home)
    found.lay_out(shared)
    return found


@pytest.mark.needs("links")
@pytest.mark.parametrize("given", [None, "links", "data"])
def test_data_behind_links_goes_along_where_onnx_runtime_follows_them(
    tmp_path: Path, shared: Blobs, given: str | None
) -> None:
    """As in Hugging Face's cache; a link out of another `external_data_dir` is not followed."""
    blobs = model(tmp_path / "here" / "blobs").parent
    for folder in ("links", "data"):
        (tmp_path / "here" / folder).mkdir()
        for name in ("a.onnx", "a.data"):
            (tmp_path / "here" / folder / name).symlink_to(blobs / name)
    data = None if given is None else tmp_path / "here" / given
    source = ModelSource(
        name="a", path=tmp_path / "here" / "links" / "a.onnx", external_data_dir=data
    )
    files = pack(shared, [Optimize.of(source, OptimizeSettings(), tmp_path / "here" / "new")])
    place = data or source.path.parent
    assert ((place / "a.data").as_posix() in files.reads) == (given != "data")


def test_a_library_of_custom_operators_goes_along(tmp_path: Path, shared: Blobs) -> None:
    here, library = job(tmp_path / "here"), tmp_path / "here" / "libops.so"
    library.write_bytes(b"kernels")
    here = replace(here, source=replace(here.source, custom_ops=library))
    far = placed(pack(shared, [here]), tmp_path / "there", shared)
    moved = moved_in(here, far.real).source.custom_ops
    assert moved != library and moved.read_bytes() == b"kernels"


def test_a_job_goes_elsewhere_with_what_it_reads_and_no_more(tmp_path: Path, shared: Blobs) -> None:
    here = job(tmp_path / "here")
    files = pack(shared, [here])
    assert files.roots == ((tmp_path / "here").as_posix(),)
    far = placed(files, tmp_path / "there", shared)
    there: Optimize = moved_in(here, far.real)
    folder = there.source.path.parent
    assert sorted(path.name for path in folder.iterdir()) == ["a.data", "a.onnx"]
    assert folder.is_relative_to(tmp_path / "there") and not there.folder.exists()
    assert there.source.reference is not None and there.source.reference.path == there.source.path
    there.folder.mkdir()
    (there.folder / "graph.onnx").write_bytes(b"graph")
    assert far.collect(shared, failed=True) == {}
    portable.receive(shared, files, far.collect(shared, failed=False), failed=False)
    assert (tmp_path / "here" / "new" / "graph.onnx").read_bytes() == b"graph"
    said = f'"{there.source.path.as_posix()}: no such node"'
    assert far.named(said) == f'"{here.source.path.as_posix()}: no such node"'


def test_folders_far_from_each_other_are_none_in_another(tmp_path: Path, shared: Blobs) -> None:
    for each in ("a/b", "a/b/c", "d"):
        (tmp_path / each).mkdir(parents=True, exist_ok=True)
        (tmp_path / each / "lib.so").write_bytes(each.encode())
    options = {name: str(tmp_path / name / "lib.so") for name in ("a/b", "a/b/c", "d")}
    spec = ProviderSpec(alias="a", provider="P", options=options, path_options=tuple(options))
    files = pack(shared, [spec])
    assert files.roots == tuple((tmp_path / each).as_posix() for each in ("d", "a/b"))
    far = placed(files, tmp_path / "there", shared)
    moved: ProviderSpec = moved_in(spec, far.real)
    assert {n: Path(str(p)).read_bytes() for n, p in moved.options.items()} == {
        name: name.encode() for name in options
    }
    assert moved.options["d"] == str(tmp_path / "there" / "0" / "lib.so")


def test_a_folder_that_a_job_adds_to_goes_with_what_is_in_it(tmp_path: Path, shared: Blobs) -> None:
    kept = tmp_path / "here" / "kept"
    (kept / "a").mkdir(parents=True)
    (kept / "a" / "sizes.json").write_bytes(b"{}")
    source = ModelSource(name="a", path=model(tmp_path / "here" / "m"))
    runs = [RunSource(index=i, source=source, settings=VerifyInputs(), folder=kept) for i in (0, 1)]
    files = pack(shared, runs)
    far = placed(files, tmp_path / "there", shared)
    one, two = moved_in(runs, far.real)
    assert one.folder == two.folder, "the second finds what the first has kept"
    assert (one.folder / "a" / "sizes.json").read_bytes() == b"{}"
    (one.folder / "a" / "output_0.pb").write_bytes(b"y")
    made = far.collect(shared, failed=False)
    assert [Path(name).name for name in made] == ["output_0.pb"]
    portable.receive(shared, files, made, failed=False)
    assert sorted(path.name for path in (kept / "a").iterdir()) == ["output_0.pb", "sizes.json"]


@pytest.mark.parametrize("text", ["/etc/passwd", "model.onnx", "{here}/../x", "{here}2/x"])
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, shared: Blobs, text: str) -> None:
    files = pack(shared, [job(tmp_path / "here")])
    evil = text.format(here=(tmp_path / "here").as_posix())
    with pytest.raises(CompileError, match="a path outside the job"):
        Placed(files, tmp_path / "there").real(Path(evil))


@pytest.mark.parametrize(
    "name", ["../evil", "/evil", "a/../../evil", "c:evil", "a\\b", "", "{here}/m/a.onnx"]
)
def test_a_file_that_leads_elsewhere_is_refused_on_both_sides(
    tmp_path: Path, shared: Blobs, name: str
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    blob = shared.put(tmp_path / "x")
    files = pack(shared, [job(tmp_path / "here")])
    (write,) = files.writes
    text = name.format(here=(tmp_path / "here").as_posix())
    text = text if text != name else f"{write}/{name}"
    with pytest.raises(CompileError, match="a file that its job does not write"):
        portable.receive(shared, files, {text: blob}, failed=False)
    assert not (tmp_path / "here" / "new").exists()
    if name not in ("", "/evil") and "{" not in name:  # of these a path is made that is plain
        evil = replace(files, reads={text: blob})
        with pytest.raises(CompileError, match="a path outside the job"):
            Placed(evil, tmp_path / "there").lay_out(shared)


@pytest.mark.parametrize(
    ("only", "failed", "name", "taken"),
    [
        (None, False, "a", True),
        (None, True, "a", False),
        ("log", True, "log", True),
        ("log", True, "other", False),
        ("log", False, "log", False),
    ],
)
def test_what_counts_if_a_job_fails_is_one_file_and_else_all(
    tmp_path: Path, shared: Blobs, only: str | None, failed: bool, name: str, taken: bool
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    folder = (tmp_path / "w").as_posix()
    files = Files(roots=(tmp_path.as_posix(),), reads={}, folders=(), writes={folder: only})
    made = {f"{folder}/{name}": shared.put(tmp_path / "x")}
    if taken:
        portable.receive(shared, files, made, failed=failed)
        assert (tmp_path / "w" / name).read_bytes() == b"x"
        return
    with pytest.raises(CompileError, match="a file that its job does not write"):
        portable.receive(shared, files, made, failed=failed)


def test_more_files_than_may_be_are_refused(
    tmp_path: Path, shared: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = pack(shared, [job(tmp_path / "here")])
    monkeypatch.setenv("EPCTX_LIMIT_MACHINE_FILES", "1")
    with pytest.raises(CompileError, match="more than 1 files"):
        Placed(files, tmp_path / "there").lay_out(shared)


def test_a_folder_that_is_no_optimized_model_is_told(tmp_path: Path, shared: Blobs) -> None:
    folder = tmp_path / "o"
    folder.mkdir()
    (folder / "record.json").write_text("{}")
    spec = ProviderSpec(alias="a", provider="P", options={"x": str(folder)}, path_options=("x",))
    with pytest.raises(StorageError, match="is not an optimized model"):
        pack(shared, [spec])


def held(folder: Path, digest: str) -> Path:
    (found,) = folder.rglob(digest)
    found.chmod(0o644)
    return found


def test_a_content_goes_through_a_folder_that_both_see(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    here, there = (portable.shared(f"file://{tmp_path.as_posix()}/sh%20ared") for _ in range(2))
    blob = here.put(tmp_path / "a")
    assert here.put(tmp_path / "a") == blob == portable.Blob(digest=of_bytes(b"weights"), size=7)
    there.fetch(blob, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights" and (tmp_path / "sh ared").is_dir()
    with pytest.raises(StorageError, match="cannot be read"):
        here.put(tmp_path / "none")


def test_what_a_store_gives_is_checked(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    shared = portable.shared((tmp_path / "store").as_uri())
    blob = shared.put(tmp_path / "a")
    there = held(tmp_path / "store", blob.digest.hex)
    for content in (b"weight", b"weights and more", b"weightx"):
        there.write_bytes(content)
        with pytest.raises(StorageError, match="did not come through the shared cache"):
            shared.fetch(blob, tmp_path / "b")
        assert not (tmp_path / "b").exists()
    assert not there.exists(), "what is not its digest's content is removed"
    with pytest.raises(StorageError, match="it does not exist"):
        shared.fetch(blob, tmp_path / "b")


def test_what_the_store_has_lost_or_spoilt_is_put_there_anew(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"weights")
    shared = portable.shared((tmp_path / "store").as_uri())
    blob = shared.put(tmp_path / "a")
    held(tmp_path / "store", blob.digest.hex).unlink()
    shared.put(tmp_path / "a")
    held(tmp_path / "store", blob.digest.hex).write_bytes(b"weightx")
    with pytest.raises(StorageError, match="did not come through the shared cache"):
        shared.fetch(blob, tmp_path / "b")
    shared.put(tmp_path / "a")
    shared.fetch(blob, tmp_path / "b")
    assert (tmp_path / "b").read_bytes() == b"weights"


def test_what_was_fetched_is_not_fetched_again_and_the_oldest_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = portable.shared((tmp_path / "store").as_uri(), tmp_path / "kept")
    found = []
    for number, name in enumerate("abc"):
        monkeypatch.setattr(portable, "_KEPT", 100 if name != "c" else 20)
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
    shared, nonce = portable.shared((tmp_path / "store").as_uri()), new_nonce()
    shared.put_answer(nonce, "Jürgen")
    assert shared.get_answer(nonce) == "Jürgen"
    monkeypatch.setenv("EPCTX_LIMIT_MACHINE_JOB", "3")
    with pytest.raises(StorageError, match="more than the 67"):
        shared.get_answer(nonce)
    shared.forget([nonce, new_nonce()])
    with pytest.raises(StorageError, match="there is no answer"):
        shared.get_answer(nonce)


def test_an_answer_of_who_does_not_know_the_nonce_is_none(tmp_path: Path) -> None:
    shared, nonce, other = portable.shared((tmp_path / "store").as_uri()), new_nonce(), new_nonce()
    shared.put_answer(other, "right")
    theirs = held(tmp_path / "store", of_bytes(bytes.fromhex(other.hex)).hex).read_bytes()
    shared.put_answer(nonce, "right")
    own = held(tmp_path / "store", of_bytes(bytes.fromhex(nonce.hex)).hex)
    right = own.read_bytes()
    assert nonce.hex.encode() not in right
    for forged in (theirs, right.replace(b"right", b"wrong"), b"wrong", b""):
        own.write_bytes(forged)
        with pytest.raises(StorageError, match="is not from the worker that was asked"):
            shared.get_answer(nonce)


@pytest.mark.parametrize("url", [None, "", "ftp://bucket", "file://host/x", "/folder"])
def test_without_a_shared_cache_nothing_begins(url: str | None) -> None:
    with pytest.raises(UsageError):
        portable.shared(url)
