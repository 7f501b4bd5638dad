import dataclasses
from pathlib import Path

import pytest

from epctx.cache.store import Cache
from epctx.errors import ModelError
from epctx.files import digest, identity
from epctx.keys.source_digests import SourceDigests, Sources, refuse_changed
from epctx.manifest import ModelSource
from tests.kit import projects
from tests.kit.mapping import written_map


@pytest.fixture
def source(tmp_path: Path) -> ModelSource:
    (tmp_path / "m.onnx").write_bytes(b"model")
    (tmp_path / "w").mkdir()
    (tmp_path / "w" / "a.data").write_bytes(b"a")
    (tmp_path / "b.data").write_bytes(b"b")
    return ModelSource(name="m", path=tmp_path / "m.onnx")


@pytest.fixture
def sources(cache: Cache) -> Sources:
    return Sources(digests=cache.digests, records=cache.records)


def known(sources: Sources, *locations: str) -> None:
    """As after a model was loaded."""
    model = digest.of_bytes(b"model")
    sources.remember(SourceDigests(model=model, locations=locations, data=()))


def test_a_model_that_was_never_loaded_is_unknown(sources: Sources, source: ModelSource) -> None:
    assert sources.find(source) is None


def test_its_data_files_are_known_by_its_content(sources: Sources, source: ModelSource) -> None:
    known(sources, "b.data", "w/a.data")
    assert sources.find(source) == SourceDigests(
        model=digest.of_bytes(b"model"),
        locations=("b.data", "w/a.data"),
        data=(digest.of_bytes(b"b"), digest.of_bytes(b"a")),
    )


def test_a_copy_with_its_data_elsewhere_is_known_too(
    sources: Sources, source: ModelSource, tmp_path: Path
) -> None:
    known(sources, "b.data")
    (tmp_path / "copy.onnx").write_bytes(b"model")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "b.data").write_bytes(b"other weights")
    copy = ModelSource(
        name="c", path=tmp_path / "copy.onnx", external_data_dir=tmp_path / "elsewhere"
    )
    found = sources.find(copy)
    assert found is not None
    assert found.data == (digest.of_bytes(b"other weights"),)


def test_another_model_is_unknown(sources: Sources, source: ModelSource) -> None:
    known(sources)
    source.path.write_bytes(b"edited")
    assert sources.find(source) is None


@pytest.mark.parametrize("name", ["m.onnx", "b.data"])
def test_a_missing_file_is_named(sources: Sources, source: ModelSource, name: str) -> None:
    known(sources, "b.data")
    path = source.path.with_name(name)
    path.unlink()
    with pytest.raises(ModelError, match="does not exist") as caught:
        sources.find(source)
    assert caught.value.where == str(path)
    path.mkdir()
    with pytest.raises(ModelError, match="cannot be read"):
        sources.find(source)


def test_without_a_cache_every_model_is_unknown(cache: Cache, source: ModelSource) -> None:
    sources = Sources(digests=cache.digests, records=None)
    known(sources)
    assert sources.find(source) is None


@pytest.mark.needs("file systems that tell of each write")
def test_a_write_through_a_map_while_it_was_built_is_told(
    sources: Sources, source: ModelSource, tmp_path: Path
) -> None:
    with written_map(tmp_path / "b.data") as mapped:
        found = sources.of(source, ("b.data", "w/a.data"))
        refuse_changed(source, found)
        mapped[:1] = b"x"
        with pytest.raises(ModelError, match=r"b\.data: was changed while it was built"):
            refuse_changed(source, found)


def test_where_writes_do_not_show_its_bytes_tell(
    sources: Sources, source: ModelSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "tells", lambda path, text: False)
    found = sources.of(source, ("b.data",))
    refuse_changed(source, found)
    unseen = dataclasses.replace(found, data=(digest.of_bytes(b"as it was hashed"),))
    with pytest.raises(ModelError, match=r"b\.data: was changed while it was built"):
        refuse_changed(source, unseen)


def test_where_it_may_be_found_elsewhere_a_model_is_looked_into(
    cache: Cache, tmp_path: Path
) -> None:
    project = projects.make(tmp_path / "p", {"g": ["a"]})
    source = ModelSource(name="a", path=project.folder / "a.onnx")
    assert Sources(digests=cache.digests, records=None).find(source) is None
    found = Sources(digests=cache.digests, records=None, reads=True).find(source)
    assert found is not None
    assert found.locations == ("a.data",)
    assert Sources(digests=cache.digests, records=cache.records).find(source) is None
    reading = Sources(digests=cache.digests, records=cache.records, reads=True)
    assert reading.find(source) == found
    assert Sources(digests=cache.digests, records=cache.records).find(source) == found


def test_what_cannot_be_looked_into_is_left_to_who_loads_it(
    cache: Cache, source: ModelSource
) -> None:
    assert Sources(digests=cache.digests, records=None, reads=True).find(source) is None
