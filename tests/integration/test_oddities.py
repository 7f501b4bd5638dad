"""What ONNX Runtime takes, epctx takes, and computes the same: models that onnx's tools refuse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from epctx.graph.serde import protos
from tests.kit import oddities, passing
from tests.kit.building import assert_close, normal

FEEDS = {"x": normal((2, 4))}


@pytest.mark.parametrize("level", ["none", "basic"])
@pytest.mark.parametrize("name", oddities.FORBIDDEN)
def test_what_onnx_forbids_and_onnx_runtime_runs(
    name: str, level: passing.Level, tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(oddities.FORBIDDEN[name](), path)
    wanted = passing.stock(path, FEEDS)
    assert np.abs(wanted[0]).max() > 0
    assert_close(passing.through(path, tmp_path, FEEDS, level), wanted)


def test_onnx_does_forbid_them() -> None:
    taken = set()
    for name, make in oddities.FORBIDDEN.items():
        try:
            onnx.checker.check_model(make())
        except (onnx.checker.ValidationError, RuntimeError):
            continue
        taken.add(name)
    assert taken == {"two opsets of one domain"}, "ONNX forbids it, its checker does not see it"


@pytest.mark.parametrize("level", ["none", "basic"])
@pytest.mark.parametrize("name", oddities.INSIDE)
def test_tensors_in_nodes(name: str, level: passing.Level, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(oddities.INSIDE[name](), path)
    feeds = {**FEEDS, "c": np.array(True), "n": np.array(2, np.int64)}
    wanted = passing.stock(path, feeds)
    assert np.abs(wanted[0]).max() > 100
    assert_close(passing.through(path, tmp_path, feeds, level), wanted)


@pytest.mark.parametrize("level", ["none", "basic"])
@pytest.mark.parametrize("name", oddities.SCOPES)
def test_names_mean_what_they_mean_to_onnx_runtime(
    name: str, level: passing.Level, tmp_path: Path
) -> None:
    make, sizes = oddities.SCOPES[name]
    model = make()
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    dims = [d.dim_value or sizes[d.dim_param] for d in protos.dimensions(model.graph.input[0].type)]
    feeds = {"x": normal(dims)}
    wanted = passing.stock(path, feeds)
    assert_close(passing.through(path, tmp_path, feeds, level, dimensions=dict(sizes)), wanted)


@pytest.mark.parametrize("sizes", [{}, {"batch": 2, "sequence": 3}])
@pytest.mark.parametrize("level", ["none", "basic", "extended"])
@pytest.mark.parametrize("kind", oddities.SEARCHES)
def test_bodies_whose_names_the_operator_knows(
    kind: str, level: passing.Level, sizes: dict[str, int], tmp_path: Path
) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(oddities.search(kind), path)
    feeds = {"input_ids": np.array([[1, 2, 3], [4, 5, 6]], np.int32)}
    wanted = passing.stock(path, feeds)
    assert wanted[0].max() > 0
    found = passing.through(path, tmp_path, feeds, level, dimensions=sizes)
    np.testing.assert_array_equal(found[0], wanted[0])
