from __future__ import annotations

import numpy as np

from epctx.runtime import values

SEQUENCE = "seq(map(int64,tensor(float)))"


def test_a_sequence_of_maps_with_the_same_keys_is_a_matrix() -> None:
    rows = [{7: 0.5, 5: 0.25}, {5: 1.0, 7: 0.125}]
    ((name, array),) = values.flat(["y"], [rows], [SEQUENCE])
    assert name == "y{5, 7}" and isinstance(array, np.ndarray)
    assert array.dtype == np.float32 and array.tolist() == [[0.25, 0.5], [1.0, 0.125]]


def test_other_keys_are_another_output() -> None:
    rows = [{"a": 1, "b": 2}, {"a": 3}]
    found = dict(values.flat(["y"], [rows], ["seq(map(string,tensor(int64)))"]))
    assert list(found) == ["y[0]{'a', 'b'}", "y[1]{'a'}"]
    assert [str(np.asarray(each).dtype) for each in found.values()] == ["int64", "int64"]


def test_values_of_maps_keep_their_type() -> None:
    for kind, one, dtype in (
        ("map(int64,tensor(double))", 0.1, np.dtype(np.float64)),
        ("map(int64, double)", 0.1, np.dtype(np.float64)),
        ("map(int64,tensor(float))", 0.1, np.dtype(np.float32)),
        ("map(int64,tensor(string))", "word", np.dtype(object)),
    ):
        ((name, array),) = values.flat(["y"], [{1: one}], [kind])
        assert name == "y{1}" and isinstance(array, np.ndarray)
        assert array.dtype == dtype and array.shape == (1,)


def test_of_many_keys_some_are_named_and_all_count() -> None:
    many = dict.fromkeys(range(1000), 0.0)
    other = {**many, 1000: 0.0}
    del other[999]
    ((one, _),) = values.flat(["y"], [many], ["map(int64,tensor(float))"])
    ((two, _),) = values.flat(["y"], [other], ["map(int64,tensor(float))"])
    assert one.startswith("y{0, 1, 2, 3, 4, 5, 6, 7, ... 1000 keys, ") and one != two


def test_sequences_and_tensors() -> None:
    x = np.ones(2, np.float32)
    kinds = ["tensor(float)", "seq(tensor(float))", "seq(tensor(float))"]
    found = dict(values.flat(["x", "s", "none"], [x, [x, x], []], kinds))
    assert list(found) == ["x", "s[0]", "s[1]", "none[]"]
    assert np.asarray(found["none[]"]).size == 0


def test_what_is_told_of_an_output_is_known_by_its_name() -> None:
    assert values.suffix("y", "y") == "" and values.suffix("y[0]{'a'}", "y") == "[0]{'a'}"
    assert values.suffix("y{'[y'}", "y") == "{'[y'}"
    assert values.suffix("yy[0]", "y") is None and values.suffix("x[0]", "y") is None
