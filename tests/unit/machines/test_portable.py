from pathlib import Path

import msgspec
import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.actions.run_source import RunSource
from epctx.errors import CompileError, StorageError
from epctx.machines import blobs, portable
from epctx.machines.blobs import Blobs
from epctx.machines.portable import Files, Placed, moved_in, pack
from epctx.manifest import (
    ModelSource,
    OptimizeSettings,
    ProviderSpec,
    Reference,
    VerifyInputs,
)
from tests.kit.building import mlp


@pytest.fixture
def shared(tmp_path: Path) -> Blobs:
    return blobs.shared((tmp_path / "shared").as_uri())


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
    with pytest.raises(CompileError, match="told of a path"):
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
    with pytest.raises(CompileError, match="told of a file"):
        portable.receive(shared, files, {text: blob}, failed=False)
    assert not (tmp_path / "here" / "new").exists()
    if name not in ("", "/evil") and "{" not in name:  # of these a path is made that is plain
        evil = replace(files, reads={text: blob})
        with pytest.raises(CompileError, match="told of a path"):
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
    with pytest.raises(CompileError, match="told of a file"):
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
    with pytest.raises(StorageError, match="is no optimized model"):
        pack(shared, [spec])
