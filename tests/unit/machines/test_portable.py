from pathlib import Path

import msgspec
import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.kinds import KINDS
from epctx.actions.optimize import Optimize
from epctx.actions.run_source import RunSource
from epctx.errors import CompileError, StorageError
from epctx.machines import blobs
from epctx.machines.blobs import Blobs
from epctx.machines.portable import Input, Item, Packing, collected, placed
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
    return blobs.at(tmp_path / "shared")


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


def test_a_job_goes_elsewhere_with_what_it_reads_and_no_more(tmp_path: Path, shared: Blobs) -> None:
    packed = Packing(shared).pack(job(tmp_path / "here"))
    assert str(tmp_path).encode() not in msgspec.json.encode(packed.portable)
    (there,), roots = placed(
        packed.portable, KINDS, shared, tmp_path / "there", tmp_path / "there" / "n"
    )
    folder = there.source.path.parent
    assert sorted(path.name for path in folder.iterdir()) == ["a.data", "a.onnx"]
    assert folder.is_relative_to(tmp_path / "there") and not there.folder.exists()
    assert there.source.reference is not None and there.source.reference.path == there.source.path
    assert there.folder in roots
    there.folder.mkdir()
    (there.folder / "graph.onnx").write_bytes(b"graph")
    made = collected(packed.portable, roots, shared, failed=False)
    Packing(shared).receive(packed, made)
    assert (tmp_path / "here" / "new" / "graph.onnx").read_bytes() == b"graph"
    assert collected(packed.portable, roots, shared, failed=True) == {}


def test_a_folder_that_a_job_adds_to_goes_with_what_is_in_it(tmp_path: Path, shared: Blobs) -> None:
    kept = tmp_path / "here" / "kept"
    (kept / "a").mkdir(parents=True)
    (kept / "a" / "sizes.json").write_bytes(b"{}")
    source = ModelSource(name="a", path=model(tmp_path / "here" / "m"))
    runs = [RunSource(index=i, source=source, settings=VerifyInputs(), folder=kept) for i in (0, 1)]
    packed = Packing(shared).pack(*runs)
    (one, two), roots = placed(packed.portable, KINDS, shared, tmp_path / "t", tmp_path / "t" / "n")
    assert one.folder == two.folder, "the second finds what the first has kept"
    assert (one.folder / "a" / "sizes.json").read_bytes() == b"{}"
    (one.folder / "a" / "output_0.pb").write_bytes(b"y")
    made = collected(packed.portable, roots, shared, failed=False)
    Packing(shared).receive(packed, made)
    assert sorted(path.name for path in (kept / "a").iterdir()) == ["output_0.pb", "sizes.json"]


def test_options_that_are_paths_go_with_their_content(tmp_path: Path, shared: Blobs) -> None:
    (tmp_path / "lib.so").write_bytes(b"library")
    options = {"backend": str(tmp_path / "lib.so"), "soc": "60"}
    spec = ProviderSpec(alias="a", provider="P", options=options, path_options=("backend",))
    packed = Packing(shared).pack(spec)
    kinds = {"ProviderSpec": ProviderSpec}
    (there,), _ = placed(packed.portable, kinds, shared, tmp_path / "t", tmp_path / "t" / "n")
    path = Path(str(there.options["backend"]))
    assert path.read_bytes() == b"library" and path != tmp_path / "lib.so"
    assert there.options["soc"] == "60"


@pytest.mark.parametrize(
    "text", ["/etc/passwd", "epctx-place:9", "epctx-place:x", "epctx-place:0/../../x", "model.onnx"]
)
def test_a_path_that_leads_elsewhere_is_refused(tmp_path: Path, shared: Blobs, text: str) -> None:
    packed = Packing(shared).pack(job(tmp_path / "here"))
    good = msgspec.json.decode(packed.portable.items[0].value)
    fields = good | {"source": {"name": "a", "path": text}}
    evil = Item(kind="Optimize", value=msgspec.Raw(msgspec.json.encode(fields)))
    with pytest.raises(CompileError, match="told of a path"):
        placed(
            replace(packed.portable, items=(evil,)),
            KINDS,
            shared,
            tmp_path / "t",
            tmp_path / "t" / "n",
        )


@pytest.mark.parametrize("name", ["../evil", "/evil", "a/../../evil", "c:evil", "a\\b", ""])
def test_a_file_that_leads_elsewhere_is_refused_on_both_sides(
    tmp_path: Path, shared: Blobs, name: str
) -> None:
    (tmp_path / "x").write_bytes(b"x")
    blob = shared.put(tmp_path / "x")
    packed = Packing(shared).pack(job(tmp_path / "here"))
    with pytest.raises(CompileError, match="files that are none"):
        Packing(shared).receive(packed, {0: {name: blob}})
    places = tuple(
        replace(each, files={name: blob}) if isinstance(each, Input) else each
        for each in packed.portable.places
    )
    with pytest.raises(CompileError, match="files that are none"):
        placed(
            replace(packed.portable, places=places),
            KINDS,
            shared,
            tmp_path / "t",
            tmp_path / "t" / "n",
        )


def test_files_for_a_place_that_is_only_read_are_refused(tmp_path: Path, shared: Blobs) -> None:
    packed = Packing(shared).pack(job(tmp_path / "here"))
    reads = [n for n, each in enumerate(packed.portable.places) if isinstance(each, Input)]
    for number in (*reads, 99, -1):
        with pytest.raises(CompileError, match="where none should be"):
            Packing(shared).receive(packed, {number: {}})


def test_a_folder_that_is_no_optimized_model_is_told(tmp_path: Path, shared: Blobs) -> None:
    folder = tmp_path / "o"
    folder.mkdir()
    (folder / "record.json").write_text("{}")
    spec = ProviderSpec(alias="a", provider="P", options={"x": str(folder)}, path_options=("x",))
    with pytest.raises(StorageError, match="is no optimized model"):
        Packing(shared).pack(spec)
