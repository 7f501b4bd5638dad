"""A folder with its sources, whose sessions a test controls."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper

from epctx.manifest import ModelGroup, ModelSource, VerifySettings
from epctx.verification.findings import Finding, FolderReport
from epctx.verification.numbers import sessions
from epctx.verification.request import Kept
from tests.kit import folders

Outputs = dict[str, Any]
Change = Callable[[Outputs], Outputs]

OPENED: list[str] = []
"""Opens, runs and closes of sessions, in order."""


class Session:
    """A session of the files: it computes what the source does, then `change`s it."""

    def __init__(self, source: Path, name: str, change: Change) -> None:
        self._session = sessions.open_source(ModelSource(name=name, path=source))
        self._change = change
        self._name = name
        OPENED.append(f"open {name}")

    def get_outputs(self) -> Sequence[Any]:
        outputs: Sequence[Any] = self._session.get_outputs()
        return outputs

    def run(self, names: Sequence[str], feeds: Mapping[str, Any]) -> list[Any]:
        OPENED.append(f"run {self._name}")
        results = dict(zip(names, self._session.run(names, dict(feeds)), strict=True))
        changed = self._change(results)
        return [changed[name] for name in names]

    def get_reason_apart(self) -> str | None:
        return None

    def close(self) -> None:
        OPENED.append(f"close {self._name}")


def source_model(path: Path, *, fill: float | None = None, shape: tuple[int, ...] = (1, 4)) -> Path:
    """z = tanh(x @ w): w is random, or all `fill`."""
    rng = np.random.default_rng(1)
    w = rng.standard_normal((4, 4)) if fill is None else np.full((4, 4), fill)
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["y"], name="mm"),
            helper.make_node("Tanh", ["y"], ["z"], name="tanh"),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, shape)],
        [numpy_helper.from_array(w.astype(np.float32), "w")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(made, path)
    return path


class Case:
    """A folder with its source; `check` verifies its numbers."""

    def __init__(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = tmp_path / "out"
        self.models: tuple[str, ...] = ("m",)
        self.sources: dict[str, Path] = {}
        self.sharing: dict[str, tuple[str, ...]] = {}
        self.change: Change = lambda outputs: outputs
        self.failure: Exception | None = None
        self.verify: dict[str, Any] = {}
        self.request: dict[str, Any] = {}
        self.tmp = tmp_path
        folders.write(self.folder, sums=False)
        self.source("m")
        monkeypatch.setattr(sessions, "open_files", self._open)
        OPENED.clear()

    @property
    def kept(self) -> Kept:
        """Folders that stay from one `report` to the next, if `request` has them."""
        return Kept.below(self.tmp / "kept")

    def generating(self) -> None:
        """Have outputs of generating sessions looked at."""
        self.request = {"kept": replace(self.kept, generating=self.tmp / "recorded")}

    def source(self, name: str, **how: Any) -> None:
        self.sources[name] = source_model(self.tmp / f"{name}.onnx", **how)

    def _open(
        self, path: Path, providers: Sequence[object], *, sharing: bool, data: Path
    ) -> Session:
        if self.failure is not None:
            raise self.failure
        name = path.name.removesuffix("_ctx.onnx")
        return Session(self.sources[name], f"{name}{' shared' * sharing}", self.change)

    def group(self) -> ModelGroup:
        models = tuple(ModelSource(name=n, path=self.sources[n]) for n in self.models)
        return folders.group(
            models=models, sharing_groups=self.sharing, verify=VerifySettings(**self.verify)
        )

    def report(self) -> FolderReport:
        asked = {"group": self.group(), **self.request}
        return folders.report(self.folder, policies=("numbers",), **asked)

    def check(self, *checks: str) -> list[Finding]:
        return [f for f in self.report().findings if not checks or f.check in checks]

    def one(self, check: str = "outputs") -> Finding:
        (finding,) = self.check(check)
        return finding
