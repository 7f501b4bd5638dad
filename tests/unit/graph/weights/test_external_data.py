"""Reading external data: every rule of design section 7, each shown firing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, cast

import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from epctx.errors import ModelError
from epctx.graph.weights.data_file import DataFile
from epctx.graph.weights.external_data import DataFolder, bits, byte_size


def _tensor(
    *, dims: tuple[int, ...] = (4, 4), data_type: int = TensorProto.FLOAT, **keys: Any
) -> onnx.TensorProto:
    tensor = TensorProto(
        name="w", dims=dims, data_type=data_type, data_location=TensorProto.EXTERNAL
    )
    for key, value in {"location": "w.bin", **keys}.items():
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    return tensor


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    inside = tmp_path / "model"
    (inside / "sub").mkdir(parents=True)
    (inside / "w.bin").write_bytes(bytes(range(100)))
    (inside / "sub" / "v.bin").write_bytes(bytes(64))
    (tmp_path / "outside.bin").write_bytes(bytes(100))
    return DataFolder(inside, model=inside / "m.onnx")


def _refused(folder: DataFolder, tensor: onnx.TensorProto) -> str:
    with pytest.raises(ModelError) as caught:
        folder.resolve(tensor)
    message = str(caught.value)
    assert "m.onnx" in message
    assert "'w'" in message
    assert "\n  -> " in message
    return message


def test_without_offset_and_length_the_data_starts_the_file(folder: DataFolder) -> None:
    reference = folder.resolve(_tensor())
    assert (reference.offset, reference.length) == (0, 64)
    assert bytes(reference.file.view(0, 4)) == bytes(range(4))


def test_a_range_may_end_with_the_file(folder: DataFolder) -> None:
    assert folder.resolve(_tensor(offset=36, length=64)).offset == 36


def test_an_empty_tensor_may_lie_at_the_end(folder: DataFolder) -> None:
    assert folder.resolve(_tensor(dims=(0, 3), offset=100)).length == 0


def test_one_file_under_several_spellings_is_opened_once(folder: DataFolder) -> None:
    spellings = ["sub/v.bin", "./sub/v.bin", "sub//v.bin", "sub/./v.bin"]
    files = {folder.resolve(_tensor(location=each)).file for each in spellings}
    assert len(files) == 1
    assert [file.location for file in folder.files] == ["sub/v.bin"]


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        ("color", "blue", "key 'color': ONNX Runtime does not load a model with it"),
        ("basepath", "/etc", "key 'basepath': ONNX Runtime does not load"),
        ("", "", "key '': ONNX Runtime does not load"),
        ("prepacked_0", "MatMul+1|0;64;0", "key 'prepacked_0': ONNX Runtime computes with this"),
        ("location", "sub/v.bin", "key 'location': it is there twice"),
        ("location", "w.bin", "key 'location': it is there twice"),
        ("offset", "36", "key 'offset': it is there twice"),
        ("length", "64", "key 'length': it is there twice"),
    ],
)
def test_keys_that_readers_disagree_on_are_refused(
    folder: DataFolder, key: str, value: str, what: str
) -> None:
    tensor = _tensor(offset=0, length=64)
    tensor.external_data.add(key=key, value=value)
    assert f"has the external data {what}" in _refused(folder, tensor)


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("", "empty"),
        (".", "the folder itself"),
        ("../outside.bin", "`..`"),
        ("sub/../../outside.bin", "`..`"),
        ("sub/..", "`..`"),
        ("/etc/passwd", "absolute"),
        ("C:/windows/w.bin", "absolute"),
        ("C:w.bin", "absolute"),
        ("\\\\server\\share\\w.bin", "backslash"),
        ("sub\\v.bin", "backslash"),
        ("..\\outside.bin", "backslash"),
        ("w.bin\0.txt", "NUL"),
        ("sub", "folder"),
    ],
)
def test_a_location_is_a_relative_path_to_a_file_inside(
    folder: DataFolder, location: str, reason: str
) -> None:
    assert reason in _refused(folder, _tensor(location=location))


@pytest.mark.parametrize("location", ["a" * 5000, "/".join("a" * 3000)])
def test_a_location_that_no_file_can_have_is_missing(folder: DataFolder, location: str) -> None:
    message = _refused(folder, _tensor(location=location))
    assert "is not in" in message
    assert len(message) < 1000


def test_a_value_that_is_not_utf8_is_refused(folder: DataFolder) -> None:
    data = _tensor(location="w.bad").SerializeToString().replace(b"w.bad", b"w.\xff\xfe\xfd")
    assert "not UTF-8" in _refused(folder, TensorProto.FromString(data))


def test_a_location_is_required(folder: DataFolder) -> None:
    assert "empty" in _refused(folder, _tensor(location=None))


def test_a_missing_file_is_named_with_a_near_one(folder: DataFolder) -> None:
    message = _refused(folder, _tensor(location="sub/w.bin"))
    assert "'sub/w.bin'" in message
    assert "did you mean 'v.bin'?" in message
    assert "external_data_dir" in message


@pytest.mark.parametrize(
    ("model", "missing", "near"),
    [("mobilenet.onnx", "mobilenet.data", "mobilenet.dat"), ("m.model", "m.models", "m.modes")],
)
def test_a_model_is_not_what_a_missing_data_file_was_meant_to_be(
    tmp_path: Path, model: str, missing: str, near: str
) -> None:
    for each in (model, "mobilenet2.onnx"):
        (tmp_path / each).write_bytes(b"")
    tensor = _tensor(location=missing)
    with pytest.raises(ModelError) as caught:
        DataFolder(tmp_path, model=tmp_path / model).resolve(tensor)
    assert "did you mean" not in str(caught.value)
    (tmp_path / near).write_bytes(b"")
    with pytest.raises(ModelError, match=rf"did you mean '{near}'\?"):
        DataFolder(tmp_path, model=tmp_path / model).resolve(tensor)


def test_a_missing_file_in_a_folder_that_has_nothing_like_it(folder: DataFolder) -> None:
    message = _refused(folder, _tensor(location="none/model.onnx_data"))
    assert "did you mean" not in message
    assert "external_data_dir" in message


@pytest.mark.needs("links")
class TestLinks:
    def test_a_link_inside_is_followed(self, folder: DataFolder) -> None:
        (folder.path / "link.bin").symlink_to(folder.path / "w.bin")
        assert folder.resolve(_tensor(location="link.bin")).file.size == 100

    def test_a_link_that_leads_out_is_refused(self, folder: DataFolder) -> None:
        (folder.path / "link.bin").symlink_to(folder.path.parent / "outside.bin")
        message = _refused(folder, _tensor(location="link.bin"))
        assert "outside" in message
        assert "outside.bin" in message

    def test_a_linked_folder_that_leads_out_is_refused(self, folder: DataFolder) -> None:
        (folder.path / "up").symlink_to(folder.path.parent)
        assert "outside" in _refused(folder, _tensor(location="up/outside.bin"))

    def test_the_folder_itself_may_be_a_link(self, folder: DataFolder) -> None:
        (folder.path.parent / "alias").symlink_to(folder.path)
        alias = DataFolder(folder.path.parent / "alias", model=folder.path / "m.onnx")
        assert alias.resolve(_tensor()).length == 64

    def test_a_link_into_nothing_is_refused(self, folder: DataFolder) -> None:
        (folder.path / "link.bin").symlink_to(folder.path / "gone.bin")
        message = _refused(folder, _tensor(location="link.bin"))
        assert "gone.bin, which does not exist" in message and "mean 'link" not in message

    @pytest.mark.parametrize("given", [None, "model", "other"])
    def test_a_link_may_lead_beside_the_real_model_but_not_from_another_folder(
        self, folder: DataFolder, given: str | None
    ) -> None:
        """As in ONNX Runtime."""
        root = folder.path.parent
        (root / "other").mkdir()
        (root / "real").mkdir()
        for name in ("m.onnx", "w.bin"):
            (root / "real" / name).write_bytes(bytes(100))
        (folder.path / "w.bin").unlink()
        for link in (folder.path / "m.onnx", folder.path / "w.bin", root / "other" / "w.bin"):
            link.symlink_to(root / "real" / link.name)
        model = folder.path / "m.onnx"
        data = None if given is None else root / given
        opened = DataFolder.of_model(model, DataFile.open(model), data)
        if given == "other":
            assert "a link to" in _refused(opened, _tensor())
        else:
            assert opened.resolve(_tensor()).file.path == root / "real" / "w.bin"


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize(
    "text", ["-1", "", "abc", "1.5", "0x10", " 4", "+4", "1e3", "٣", str(2**63), "9" * 5000]
)
def test_offset_and_length_are_whole_numbers(folder: DataFolder, key: str, text: str) -> None:
    message = _refused(folder, _tensor(**cast(dict[str, Any], {key: text})))
    assert f"external data {key}" in message
    assert len(message) < 1000


@pytest.mark.parametrize(
    ("offset", "what"),
    [(37, "reaches to byte 101"), (2**63 - 1, "which has 100")],
)
def test_a_range_ends_inside_the_file(folder: DataFolder, offset: int, what: str) -> None:
    assert what in _refused(folder, _tensor(offset=offset, length=64))


@pytest.mark.parametrize("length", [63, 65, 0])
def test_the_length_fits_type_and_shape(folder: DataFolder, length: int) -> None:
    message = _refused(folder, _tensor(length=length))
    assert f"has {length} bytes" in message
    assert "need 64" in message


@pytest.mark.parametrize(
    ("dims", "what"),
    [
        ((-1, 4), "negative"),
        ((2**40, 2**40), "larger than any file"),
        ((2**31, 2**31, 2**31), "larger than any file"),
    ],
)
def test_dimensions_are_sizes(folder: DataFolder, dims: tuple[int, ...], what: str) -> None:
    assert what in _refused(folder, _tensor(dims=dims))


@pytest.mark.parametrize("data_type", [TensorProto.STRING, TensorProto.UNDEFINED, 999])
def test_types_without_raw_data_are_refused(folder: DataFolder, data_type: int) -> None:
    assert "ONNX does not allow" in _refused(folder, _tensor(data_type=data_type))


@pytest.mark.parametrize(
    ("data_type", "elements", "size"),
    [
        (TensorProto.INT4, 5, 3),
        (TensorProto.UINT2, 5, 2),
        (TensorProto.FLOAT8E5M2, 5, 5),
        (TensorProto.BFLOAT16, 5, 10),
        (TensorProto.COMPLEX128, 5, 80),
        (TensorProto.BOOL, 0, 0),
    ],
)
def test_sizes_of_types(data_type: int, elements: int, size: int) -> None:
    assert byte_size(TensorProto(dims=[elements], data_type=data_type), where="") == size


def test_every_type_that_onnx_can_store_has_a_size() -> None:
    for dtype in set(ir.DataType) - {ir.DataType.UNDEFINED, ir.DataType.STRING}:
        assert byte_size(TensorProto(dims=[12], data_type=dtype.value), where="") > 0


class TestChecksum:
    def test_the_sha1_of_the_file_is_accepted(self, folder: DataFolder) -> None:
        sha1 = hashlib.sha1(bytes(range(100)), usedforsecurity=False).hexdigest()
        assert folder.resolve(_tensor(checksum=sha1)).length == 64
        assert folder.resolve(_tensor(checksum=sha1.upper())).length == 64

    def test_another_is_refused(self, folder: DataFolder) -> None:
        message = _refused(folder, _tensor(checksum="0" * 40))
        assert "0" * 40 in message
        assert "corrupt" in message

    @pytest.mark.parametrize("text", ["", "abc", "0" * 39, "g" * 40, "0" * 64])
    def test_what_is_no_sha1_is_refused(self, folder: DataFolder, text: str) -> None:
        assert "40 hexadecimal digits" in _refused(folder, _tensor(checksum=text))


@pytest.mark.parametrize("kind", [*onnx.TensorProto.DataType.values(), 10_000])
def test_the_bits_of_an_element_are_those_that_onnx_ir_knows(kind: int) -> None:
    unsized = (onnx.TensorProto.UNDEFINED, onnx.TensorProto.STRING, 10_000)
    assert bits(kind) == (None if kind in unsized else ir.DataType(kind).bitwidth)
