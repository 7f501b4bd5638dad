import dataclasses
from pathlib import Path

import onnx
import pytest
from onnx import helper

from epctx.cache.store import Cache
from epctx.errors import ModelError
from epctx.files import digest, identity
from epctx.keys.source_digests import SourceDigests, Sources, refuse_changed
from epctx.manifest import ModelSource
from tests.kit.mapping import written_map


def weights(*locations: str) -> bytes:
    """A model with a tensor in each of these files."""
    initializers = []
    for number, location in enumerate(locations):
        tensor = onnx.TensorProto(name=f"w{number}", data_type=1, dims=[1])
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        initializers.append(tensor)
    graph = helper.make_graph([], "g", [], [], initializers)
    return bytes(helper.make_model(graph).SerializeToString())


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    (tmp_path / "m.onnx").write_bytes(weights("w/a.data", "./b.data", "b.data"))
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.data").write_bytes(b"a")
    (tmp_path / "b.data").write_bytes(b"b")
    return ModelSource(name="m", path=tmp_path / "m.onnx")


@pytest.fixture
def sources(cache: Cache) -> Sources:
    return Sources(cache.digests)


def test_a_model_is_its_file_and_its_data_each_once(sources: Sources, source: ModelSource) -> None:
    assert sources.find(source) == SourceDigests(
        model=digest.of_file(source.path),
        locations=("b.data", "w/a.data"),
        data=(digest.of_bytes(b"b"), digest.of_bytes(b"a")),
    )


def test_a_copy_has_its_own_data(sources: Sources, source: ModelSource, tmp_path: Path) -> None:
    own = sources.find(source)
    (tmp_path / "copy.onnx").write_bytes(source.path.read_bytes())
    (tmp_path / "elsewhere" / "w").mkdir(parents=True)
    for place in ("b.data", "w/a.data"):
        (tmp_path / "elsewhere" / place).write_bytes(b"other weights")
    copy = ModelSource(
        name="c", path=tmp_path / "copy.onnx", external_data_dir=tmp_path / "elsewhere"
    )
    found = sources.find(copy)
    assert found.model == own.model and set(found.data) == {digest.of_bytes(b"other weights")}


def test_it_is_what_it_refers_to_now(sources: Sources, source: ModelSource) -> None:
    sources.find(source)
    source.path.write_bytes(weights("b.data"))
    assert sources.find(source).locations == ("b.data",)


@pytest.mark.parametrize("name", ["m.onnx", "b.data"])
def test_a_missing_file_is_named(sources: Sources, source: ModelSource, name: str) -> None:
    path = source.path.with_name(name)
    path.unlink()
    with pytest.raises(ModelError, match="does not exist") as caught:
        sources.find(source)
    assert caught.value.where == str(path)
    path.mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        sources.find(source)


@pytest.mark.parametrize("place", ["../a.data", "/etc/passwd", "sub/../../a.data", ""])
def test_data_outside_its_folder_is_not_looked_at(
    sources: Sources, source: ModelSource, place: str
) -> None:
    source.path.write_bytes(weights(place))
    with pytest.raises(ModelError, match="refers to external data"):
        sources.find(source)


@pytest.mark.needs("file systems that tell of each write")
def test_a_write_through_a_map_while_it_was_built_is_told(
    sources: Sources, source: ModelSource, tmp_path: Path
) -> None:
    with written_map(tmp_path / "b.data") as mapped:
        found = sources.find(source)
        refuse_changed(source, found)
        mapped[:1] = b"x"
        with pytest.raises(ModelError, match=r"b\.data: was changed while it was built"):
            refuse_changed(source, found)


def test_where_writes_do_not_show_its_bytes_tell(
    sources: Sources, source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "tells", lambda path, text: False)
    found = sources.find(source)
    refuse_changed(source, found)
    unseen = dataclasses.replace(found, data=(digest.of_bytes(b"as it was hashed"),) * 2)
    with pytest.raises(ModelError, match=r"b\.data: was changed while it was built"):
        refuse_changed(source, unseen)


def test_a_data_file_named_as_the_library_keeps_its_digest(
    sources: Sources, tmp_path: Path
) -> None:
    path, library = tmp_path / "m.onnx", tmp_path / "lib.so"
    path.write_bytes(weights("custom_ops", "./custom_ops"))
    (tmp_path / "custom_ops").write_bytes(b"weights")
    library.write_bytes(b"library")
    source = ModelSource(name="m", path=path, custom_ops=library)
    digests = sources.find(source)
    expected = (digest.of_bytes(b"weights"), digest.of_bytes(b"library"))
    assert tuple(dict(zip(digests.locations, digests.data, strict=True)).values()) == expected
    assert tuple(digests.files(source)) == (path, tmp_path / "custom_ops", library)
