"""Input sets: generated, and from files."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import numpy_helper

from epctx.errors import ManifestError, ModelError
from epctx.graph.inputs import Hint, InputSpec
from epctx.inference import feeds
from epctx.inference.feeds import assumed, fit, generate, read


def spec(
    name: str = "x",
    dtype: npt.DTypeLike = np.float32,
    shape: tuple[int | str | None, ...] = (4, 5),
    **more: Any,
) -> InputSpec:
    return InputSpec(
        name=name, dtype=np.dtype(dtype), shape=shape, kind=str(np.dtype(dtype)), **more
    )


def one(
    wanted: InputSpec, *, seed: int = 0, index: int = 0, **ranges: tuple[float, float]
) -> np.ndarray:
    return generate([wanted], seed=seed, index=index, ranges=ranges)[wanted.name]


def test_a_value_depends_on_seed_set_and_name_alone() -> None:
    a, b = spec("a"), spec("b")
    together = generate([a, b], seed=3, index=1)
    assert np.array_equal(together["a"], generate([b, a], seed=3, index=1)["a"])
    assert np.array_equal(together["a"], one(a, seed=3, index=1))
    for other in (one(b, seed=3, index=1), one(a, seed=4, index=1), one(a, seed=3, index=2)):
        assert not np.array_equal(together["a"], other)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
def test_floats_are_standard_normal(dtype: npt.DTypeLike) -> None:
    values = one(spec(dtype=dtype, shape=(100, 100)))
    assert values.dtype == dtype and values.shape == (100, 100)
    wide = values.astype(np.float64)
    assert abs(wide.mean()) < 0.05 and abs(wide.std() - 1) < 0.05


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16, np.uint16])
def test_narrow_integers_use_their_whole_range(dtype: npt.DTypeLike) -> None:
    values, bounds = one(spec(dtype=dtype, shape=(300, 300))), np.iinfo(dtype)
    span = int(bounds.max) - int(bounds.min)
    assert int(values.min()) < bounds.min + span * 0.01
    assert int(values.max()) > bounds.max - span * 0.01


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint32, np.uint64, np.bool_])
def test_wide_integers_and_booleans_are_zero_or_one(dtype: npt.DTypeLike) -> None:
    values = one(spec(dtype=dtype, shape=(100,)))
    assert values.dtype == dtype and set(values.tolist()) == {0, 1}


def test_ranges_are_inclusive() -> None:
    drawn = one(spec(dtype=np.int64, shape=(1000,)), x=(-2, 2))
    assert set(drawn.tolist()) == {-2, -1, 0, 1, 2}
    assert set(one(spec(dtype=np.int32, shape=(9,)), x=(7, 7)).tolist()) == {7}
    assert one(spec(dtype=np.bool_, shape=(50,)), x=(1, 1)).all()
    floats = one(spec(shape=(1000,)), x=(10, 12))
    assert floats.dtype == np.float32 and 10 <= floats.min() < 10.1 and 11.9 < floats.max() <= 12
    extremes = one(spec(dtype=np.uint64, shape=(3,)), x=(0, float(2**53)))
    assert extremes.dtype == np.uint64


@pytest.mark.parametrize(
    ("dtype", "given", "why"),
    [
        (np.int32, (5, 4), "its low end is above its high end"),
        (np.int32, (0.5, 4), "int32 holds integers only"),
        (np.uint8, (-1, 4), r"uint8 holds [0, 255]"),
        (np.bool_, (0, 2), r"bool holds [0, 1]"),
        (np.float16, (0, 1e6), r"float16 holds [-65504, 65504]"),
        (np.float32, (1, 0), "its low end is above its high end"),
        (np.float32, (float("nan"), 1), "its low end is above its high end"),
        (np.float64, (-1.7e308, 1.7e308), "its width is too large for float64"),
        (np.int64, (0, float("inf")), "int64 holds"),
    ],
)
def test_a_range_that_the_input_cannot_hold_is_refused(
    dtype: npt.DTypeLike, given: tuple[float, float], why: str
) -> None:
    with pytest.raises(ManifestError) as caught:
        one(spec(dtype=dtype), x=given)
    assert why in str(caught.value)
    assert "verify.inputs.ranges" in str(caught.value)


def test_a_hint_of_the_graph_is_used_unless_a_range_is_given() -> None:
    ids = spec(dtype=np.int64, shape=(2000,), hint=Hint(0, 30, ""))
    assert set(one(ids).tolist()) == set(range(31))
    assert set(one(ids, x=(3, 4)).tolist()) == {3, 4}


def test_a_hint_is_as_narrow_as_its_type() -> None:
    """A logarithm of a cast integer; a scale of which float16 does not hold every multiple."""
    assert set(one(spec(dtype=np.int64, shape=(99,), hint=Hint(2**-10, 4, ""))).tolist()) == {
        1,
        2,
        3,
        4,
    }
    wide = one(spec(dtype=np.float16, shape=(999,), hint=Hint(-1e5, 1e5, "")))
    assert np.isfinite(wide).all() and wide.max() > 6e4


def test_values_that_give_a_size_are_used_as_they_are() -> None:
    sizes = Hint(1, 9, "the size", (9, 1, 4))
    assert one(spec(dtype=np.int32, shape=(3,), hint=sizes)).tolist() == [9, 1, 4]
    assert one(spec(dtype=np.int64, shape=(3,), hint=sizes), x=(2, 2)).tolist() == [2, 2, 2]
    assert one(spec(dtype=np.bool_, shape=(), hint=Hint(1, 1, "", (1,)))).tolist() is True
    assert set(one(spec(dtype=np.int64, shape=(2,), hint=sizes)).tolist()) <= {*range(1, 10)}
    assert "'x' 9, 1, 4 (the size)" in assumed([spec(dtype=np.int64, hint=sizes)], {})


def test_scalars_and_empty_inputs() -> None:
    assert one(spec(shape=())).shape == ()
    assert one(spec(shape=(0, 3))).shape == (0, 3)


def test_digest_is_of_names_types_shapes_and_values() -> None:
    base: dict[str, np.ndarray] = {"a": np.zeros(4, np.float32), "b": np.ones(1, np.int64)}
    same = {"b": base["b"].copy(), "a": base["a"].copy()}
    assert feeds.digest(base) == feeds.digest(same)
    changes: tuple[dict[str, np.ndarray], ...] = (
        {**base, "a": np.zeros(4, np.int32)},
        {**base, "a": np.zeros((2, 2), np.float32)},
        {**base, "a": np.array([0, 0, 0, 1], np.float32)},
        {"c": base["a"], "b": base["b"]},
    )
    for changed in changes:
        assert feeds.digest(changed) != feeds.digest(base)
    feeds.digest({"x": np.array(1, ml_dtypes.bfloat16), "e": np.zeros((0, 2))})


def test_strings_have_a_digest_by_what_they_say() -> None:
    one, same, other, longer = (
        feeds.digest({"s": np.array(words, object)})
        for words in (["a", "b"], ["a", "b"], ["a", "c"], ["ab", ""])
    )
    assert one == same and len({one, other, longer}) == 3


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
    with pytest.raises(ManifestError, match="one value without a name, but the model has 2"):
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
    with pytest.raises(ManifestError, match="has a value for input 1, but the model has 1"):
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
        ({"x": VALUE, "inputids": NUMBERS}, 'names "inputids", which is not an input'),
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
    with pytest.raises(ModelError, match=r"is damaged, or is not a \.npy file"):
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
    with pytest.raises(ModelError, match=r"is damaged, or is not a \.npz file"):
        read([path])
