"""A model optimized by a worker, with all of onnx's inference or with less."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.optimize import Optimize
from epctx.cache.digests import FreshDigests
from epctx.errors import ModelError
from epctx.files.digest import of_bytes
from epctx.keys.source_digests import Sources
from epctx.manifest import ModelSource, OptimizeSettings
from tests.kit.building import mlp
from tests.kit.inline import Inline


@pytest.mark.parametrize("other", ["model", "data"])
def test_what_is_not_what_was_asked_for_is_not_optimized(tmp_path: Path, other: str) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(mlp(), path, save_as_external_data=True, location="m.data")
    source = ModelSource(name="m", path=path)
    found = Sources(FreshDigests()).find(source)
    right = Optimize.of(source, OptimizeSettings(), tmp_path / "right", digests=found)
    worker = Inline(tmp_path / "w", tmp_path / "log")
    worker.run([right], started=lambda stage: None)
    wrong = {"model": str(of_bytes(b"")), "data": (str(of_bytes(b"")),)}[other]
    action = replace(right, folder=tmp_path / "wrong", **{other: wrong})
    with pytest.raises(ModelError, match="was changed while it was built"):
        worker.run([action], started=lambda stage: None)
    assert not (tmp_path / "wrong").exists()
