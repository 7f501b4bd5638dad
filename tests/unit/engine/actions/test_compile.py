"""Compile actions, and the disk space that they need."""

from __future__ import annotations

import importlib
import shutil
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import onnx_ir as ir
import onnxruntime as ort
import pytest

from epctx.actions.action import WorkerContext
from epctx.actions.optimize import Optimize, OptimizeResult
from epctx.engine.actions import compile
from epctx.engine.actions.compile import TOLD, DiskSpace
from epctx.errors import StorageError
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import surgery
from epctx.providers.base import PartitionedModel
from epctx.providers.reference.workspace import ReferenceWorkspace
from epctx.worker import pool
from tests.kit import command_line
from tests.kit.inline import Inline
from tests.kit.projects import Project, make, ran


class Recording(ReferenceWorkspace):
    """Compiles with sessions of onnxruntime, which can be run: as real EPs do."""

    part = b""

    def compile(
        self, model: PartitionedModel, partitions: Sequence[Partition]
    ) -> Sequence[Replacement]:
        part = surgery.extract(model.model, partitions[0])
        for name, value in part.graph.initializers.items():
            assert value.const_value is not None
            value.const_value = ir.tensor(value.const_value.numpy(), name=name)
        self.part = ir.serde.serialize_model(part).SerializeToString()
        return super().compile(model, partitions)

    def cannot_run(self) -> str | None:
        return None

    def run(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> Mapping[str, ort.OrtValue]:
        names = [str(value.name) for value in partition.outputs]
        session = ort.InferenceSession(self.part, providers=["CPUExecutionProvider"])
        return dict(zip(names, session.run_with_ort_values(names, feeds), strict=True))


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """One model, for an EP whose files no session of this host loads."""
    monkeypatch.syspath_prepend(command_line.FAULTY)
    monkeypatch.setattr(pool, "Worker", Inline)
    command_line.forget_eps()
    module = importlib.import_module("epctx_faulty")

    members = {
        "native": True,
        "open_workspace": lambda self, spec: Recording(self.options, spec),
        "cannot_load": lambda self, nodes, folder, *, sharing: "it has no NPU",
        "check_compatibility": lambda self, info, nodes: [],
    }
    npu = type("Npu", (module.FaultyExecutionProvider,), members)
    monkeypatch.setattr(module, "FaultyExecutionProvider", npu)
    made = make(tmp_path, {"one": ["a"]})
    made.section("execution_providers")["ref"] = {"provider": "FaultyExecutionProvider"}
    yield made
    command_line.forget_eps()


def test_what_the_sessions_computed_is_compared_anew_without_a_compile(project: Project) -> None:
    def sessions() -> set[str]:
        found = report.groups[0].verify
        assert found is not None
        return {each.sessions for each in found.numbers}

    report = project.build()
    assert ran(report) == [("compile", "a"), ("optimize", "a"), ("verify", "one")]
    assert sessions() == {"generating"}
    project.section("defaults", "verify", "tolerance")["max_abs"] = 0.5
    report = project.build()
    assert ran(report) == [("verify", "one")]
    assert sessions() == {"generating"}, "its numbers are those of the recording"
    project.section("defaults", "verify", "inputs")["seed"] = 3
    report = project.build()
    assert ran(report) == [("compile", "a"), ("verify", "one")], "nothing is recorded for those"
    assert sessions() == {"generating"}


def test_large_models_of_a_session_group_are_optimized_beside_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optimized, both = Optimize.run, threading.Barrier(2)

    def meet(action: Optimize, worker: WorkerContext) -> OptimizeResult:
        both.wait(30)
        return optimized(action, worker)

    monkeypatch.setattr(pool, "Worker", Inline)
    monkeypatch.setattr(compile, "_LARGE", 1)
    monkeypatch.setattr(Optimize, "run", meet)
    report = make(tmp_path, {"two": ["a", "b"]}).build(jobs=2)
    done = [("compile", "all"), ("optimize", "a"), ("optimize", "b"), ("verify", "two")]
    assert ran(report) == done


FREE = 10 * TOLD


@pytest.fixture(autouse=True)
def _disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk of a known size: no test can have one."""
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=FREE))


@pytest.mark.parametrize(
    ("stores", "copied", "words"),
    [
        (0, False, "1.00 GB to 2.00 GB"),
        (1, False, "2.00 GB to 4.00 GB"),
        (0, True, "3.00 GB to 4.00 GB"),  # what is compiled, and what comes of it
        (1, True, "3.00 GB to 4.00 GB"),  # the copies are gone before the cache is written
    ],
)
def test_much_is_told_once_a_disk(tmp_path: Path, stores: int, copied: bool, words: str) -> None:
    told: list[str] = []
    space = DiskSpace(tmp_path, [tmp_path / "cache"] * stores)
    with space.promised(2 * TOLD, told.append, copied=copied):
        assert told == [f"{words} of disk are needed, 10.00 GB are free in {tmp_path}"]


def test_what_cannot_be_enough_is_refused_with_what_others_were_promised(tmp_path: Path) -> None:
    space = DiskSpace(tmp_path)
    with space.promised(6 * TOLD, lambda words: None):
        second = space.promised(9 * TOLD, lambda words: None)
        with pytest.raises(StorageError, match=r"4\.50 GB to 9\.00 GB .* 4\.00 GB are free"):
            second.__enter__()
    with space.promised(9 * TOLD, lambda words: None):
        pass
