from __future__ import annotations

import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.inputs import InputSpec
from epctx.runtime.feed_files import fit, read

X = InputSpec(name="x", dtype=np.dtype(np.float32), shape=(1, 2), kind="float32")
IDS = InputSpec(name="input_ids", dtype=np.dtype(np.int64), shape=(None, "n"), kind="int64")
VALUE = np.array([[1, 2]], np.float32)
NUMBERS = np.array([[5]], np.int64)


def npz(path: Path, **arrays: np.ndarray) -> Path:
    np.savez(path, allow_pickle=False, **arrays)
    return path


def pb(path: Path, array: np.ndarray, name: str = "") -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(numpy_helper.from_array(array, name).SerializeToString())
    return path


def test_npz_files_are_sets_by_input_name(tmp_path: Path) -> None:
    files = [npz(tmp_path / f"{i}.npz", x=VALUE + i, input_ids=NUMBERS) for i in range(2)]
    first, second = read(files)
    assert (first.label, second.label) == ("0.npz", "1.npz")
    fed = fit(second, [IDS, X])
    assert list(fed) == ["input_ids", "x"]
    assert np.array_equal(fed["x"], VALUE + 1)


def test_npy_is_for_a_model_of_one_input(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", VALUE)
    (only,) = read([tmp_path / "a.npy"])
    assert np.array_equal(fit(only, [X])["x"], VALUE)
    with pytest.raises(ManifestError, match="one value without a name, the model has 2 inputs"):
        fit(only, [X, IDS])


def test_onnx_test_data_sets(tmp_path: Path) -> None:
    files = [
        pb(tmp_path / "test_data_set_0" / "input_0.pb", NUMBERS),
        pb(tmp_path / "test_data_set_0" / "input_1.pb", VALUE),
        pb(tmp_path / "test_data_set_0" / "output_0.pb", VALUE),
        pb(tmp_path / "test_data_set_1" / "input_0.pb", VALUE, "x"),
        pb(tmp_path / "test_data_set_1" / "input_1.pb", NUMBERS, "input_ids"),
        pb(tmp_path / "x.pb", VALUE, "x"),
    ]
    by_position, by_name, single = read(files)
    assert by_position.label == "test_data_set_0"
    for each in (by_position, by_name):
        fed = fit(each, [IDS, X])
        assert np.array_equal(fed["x"], VALUE) and np.array_equal(fed["input_ids"], NUMBERS)
    assert np.array_equal(fit(single, [X])["x"], VALUE)
    with pytest.raises(ManifestError, match="has a value for input 1, the model has 1"):
        fit(by_position, [IDS])


def test_low_precision_floats_survive_numpy_files(tmp_path: Path) -> None:
    wanted = InputSpec(name="x", dtype=np.dtype(ml_dtypes.bfloat16), shape=(2,), kind="bfloat16")
    array = np.array([1.5, -2], ml_dtypes.bfloat16)
    (found,) = read([npz(tmp_path / "a.npz", x=array)])
    fed = fit(found, [wanted])["x"]
    assert fed.dtype == ml_dtypes.bfloat16 and np.array_equal(fed, array)
    (narrow,) = read([npz(tmp_path / "b.npz", x=np.zeros(2, "V4"))])
    with pytest.raises(ManifestError, match="which is bfloat16"):
        fit(narrow, [wanted])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": VALUE, "inputids": NUMBERS}, 'names "inputids", which is no input'),
        ({"x": VALUE}, "has no value for input 'input_ids'"),
        (
            {"x": VALUE.astype(np.float64), "input_ids": NUMBERS},
            "has float64 for input 'x', which is float32",
        ),
        (
            {"x": VALUE.reshape(2, 1), "input_ids": NUMBERS},
            "has shape [2, 1] for input 'x', which is float32[1, 2]",
        ),
        ({"x": VALUE, "input_ids": NUMBERS[0]}, "has shape [1] for input 'input_ids'"),
    ],
)
def test_values_that_do_not_fit_name_the_file_and_the_input(
    tmp_path: Path, arrays: dict[str, np.ndarray], message: str
) -> None:
    (found,) = read([npz(tmp_path / "case.npz", **arrays)])
    with pytest.raises(ManifestError) as caught:
        fit(found, [X, IDS])
    assert str(caught.value).startswith(f"case.npz: {message}")


def test_a_misspelt_name_gets_a_suggestion(tmp_path: Path) -> None:
    (found,) = read([npz(tmp_path / "case.npz", x=VALUE, inputids=NUMBERS)])
    with pytest.raises(ManifestError, match='did you mean "input_ids"'):
        fit(found, [X, IDS])


def test_broken_files_name_themselves(tmp_path: Path) -> None:
    garbage = {name: tmp_path / name for name in ("a.npz", "b.npy", "c.pb", "d.csv", "gone.npz")}
    for name, path in garbage.items():
        if name != "gone.npz":
            path.write_bytes(b"\xff\xffgarbage")
    truncated = npz(tmp_path / "t.npz", x=VALUE)
    truncated.write_bytes(truncated.read_bytes()[:-40])
    pickled = tmp_path / "p.npy"
    np.save(pickled, np.array([{}], dtype=object), allow_pickle=True)
    folder = tmp_path / "folder.npz"
    folder.mkdir()
    npy_as_npz = tmp_path / "n.npz"
    np.save(tmp_path / "n.npy", VALUE)
    (tmp_path / "n.npy").rename(npy_as_npz)
    for path in (*garbage.values(), truncated, pickled, folder, npy_as_npz):
        with pytest.raises(ModelError) as caught:
            read([path])
        assert str(caught.value).startswith(f"{path}: ")


def test_an_absent_file_is_not_called_broken(tmp_path: Path) -> None:
    for name in ("gone.npz", "gone.npy", "gone.pb"):
        with pytest.raises(ModelError, match="does not exist") as caught:
            read([tmp_path / name])
        assert caught.value.remedy == "check the path"


def test_a_tensor_that_refers_to_another_file_is_refused(tmp_path: Path) -> None:
    tensor = onnx.TensorProto(name="x", dims=[1, 2], data_type=1)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    path = tmp_path / "input_0.pb"
    path.write_bytes(tensor.SerializeToString())
    with pytest.raises(ModelError, match="its data is in another file"):
        read([path])


def test_two_tensors_of_one_name_in_a_set(tmp_path: Path) -> None:
    files = [pb(tmp_path / "set" / f"input_{i}.pb", VALUE, "x") for i in range(2)]
    with pytest.raises(ModelError, match="a second tensor named 'x' in set"):
        read(files)


def test_what_unpacks_to_more_than_its_limit_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EPCTX_LIMIT_UNPACKED_BYTES", "1000")
    bomb = tmp_path / "bomb.npz"
    np.savez_compressed(bomb, x=np.zeros(10_000, np.float32))
    with pytest.raises(ModelError, match="holds 40128 bytes, more than 1,000 bytes"):
        read([bomb])
    plain = tmp_path / "plain.npy"
    np.save(plain, np.zeros(10_000, np.float32))
    for large in (plain, pb(tmp_path / "large.pb", np.zeros(10_000, np.float32), "x")):
        with pytest.raises(ModelError, match=r"holds 40\d\d\d bytes, more than 1,000 bytes"):
            read([large])


def test_a_header_that_numpy_cannot_even_refuse(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, VALUE)
    path.write_bytes(path.read_bytes().replace(b"}", b" "))
    with pytest.raises(ModelError, match=r"is damaged, or no \.npy file"):
        read([path])


def test_objects_in_an_archive_are_no_damage(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(ModelError, match="it holds Python objects") as caught:
        read([path])
    assert "damaged" not in str(caught.value) and "allow_pickle" not in str(caught.value)


def test_a_member_that_is_no_array_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy", b"text")
    with pytest.raises(ModelError, match=r"is damaged, or no \.npz file"):
        read([path])
