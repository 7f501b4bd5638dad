"""What a user says of sizes: for the models that have such names; refused for none."""

from __future__ import annotations

import pytest

from epctx.commands.init.options import SizeOptions
from epctx.errors import UsageError
from epctx.graph import inputs
from tests.kit.onnx_text import proto

SPECS = inputs.specs(
    proto("g (float[b, 3, h] x, float[h] z) => (float[b, 3, h] y) { y = Add(x, z) }")
)


@pytest.mark.parametrize("shape", [(1, 3), (1, 4, 48)])
def test_a_shape_that_does_not_fit_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"the input 'x', which is float32\[b, 3, h\]") as caught:
        SizeOptions(shapes={"x": shape}).of(SPECS)
    assert caught.value.where == "--shape"


def test_names_that_no_model_has_are_refused() -> None:
    SizeOptions(dimensions={"h": 1}, shapes={"x": (1,)}).refuse_unknown([SPECS])
    with pytest.raises(UsageError, match='no model has an open dimension "heigh"'):
        SizeOptions(dimensions={"heigh": 1}).refuse_unknown([SPECS])
    with pytest.raises(UsageError, match='no model has an input "y"') as caught:
        SizeOptions(shapes={"y": (1,)}).refuse_unknown([SPECS])
    assert caught.value.where == "--shape"
