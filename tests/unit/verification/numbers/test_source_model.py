from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from epctx.errors import ModelError
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from epctx.verification.numbers.source_model import refuse_nonfinite

SOURCE = ModelSource(name="m", path=Path("m.onnx"))
READ = VerifySettings(inputs=VerifyInputs(files=(Path("x.npz"),)))
BAD = np.array([1.0, np.nan, np.inf, np.nan], np.float32)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, ml_dtypes.bfloat16])
def test_non_finite_outputs_of_a_users_own_inputs_are_the_models_fault(dtype: type) -> None:
    with pytest.raises(ModelError) as caught:
        refuse_nonfinite(SOURCE, READ, "x.npz", {"y": BAD.astype(dtype)})
    assert "2 NaN and 1 infinite of 4 elements in its output 'y'" in str(caught.value)
    assert "docs/numbers.md" in caught.value.remedy


def test_they_are_no_fault_where_they_are_meant_or_where_inputs_are_generated() -> None:
    allowed = VerifySettings(inputs=READ.inputs, allow_nonfinite=True)
    refuse_nonfinite(SOURCE, allowed, "x.npz", {"y": BAD})
    refuse_nonfinite(SOURCE, VerifySettings(), "seed 0, set 0", {"y": BAD})
    finite = {"y": np.ones(3), "n": np.arange(3), "t": np.array(["nan"], object)}
    refuse_nonfinite(SOURCE, READ, "x.npz", finite)
