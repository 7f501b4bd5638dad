"""Sessions that compiled, run: what they compute is kept, or why they cannot tell it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

from epctx.errors import CompileError, Failure
from epctx.graph.dataflow import Dataflow
from epctx.graph.inputs import Array
from epctx.graph.model import Partition, Replacement
from epctx.graph.partition import surgery
from epctx.graph.serde import types
from epctx.manifest import ModelSource, VerifyInputs, VerifySettings
from epctx.providers.base import ContextBinary, PartitionedModel, Workspace
from epctx.providers.onnxruntime.whole_model import GeneratingModel
from epctx.stages import record
from epctx.stages.compile import CompiledGroup
from epctx.verification.numbers import recordings
from epctx.verification.numbers.expected import Expected
from epctx.verification.numbers.input_sets import InputSets
from epctx.verification.numbers.source_model import SourceModel
from tests.kit import folders, onnx_text
from tests.kit.controlled import source_model

SETS = VerifyInputs(count=2)


class OnCpu(Workspace):
    """Runs its partition on the CPU; or fails in one of its runs."""

    def __init__(self, model: ir.Model, fails: int, why: str | None) -> None:
        self.session = onnx_text.session(model)
        self.fails, self.why, self.runs = fails, why, 0

    def compile(self, *_: object) -> Sequence[Replacement]:
        raise AssertionError("it has compiled already")

    def finish(self) -> Sequence[ContextBinary]:
        return ()

    def close(self) -> None:
        pass

    def cannot_run(self) -> str | None:
        return self.why

    def run(
        self, partition: Partition, feeds: Mapping[str, ort.OrtValue]
    ) -> dict[str, ort.OrtValue]:
        self.runs += 1
        if self.runs == self.fails:
            raise CompileError("the session failed", remedy="none")
        names = [value.name or "" for value in partition.outputs]
        return dict(zip(names, self.session.run_with_ort_values(names, dict(feeds)), strict=True))


class ForDevices(OnCpu):
    """Has sessions for one device at a time; for C it has none."""

    def variants(self) -> Sequence[str]:
        return "A", "B", "C"

    def choose(self, variant: str) -> str | None:
        if variant == "C":
            raise CompileError("does not compile for C", remedy="none")
        return "graph g is another" if variant == "B" else None


class Group:
    """A model whose MatMul was compiled; `run` runs it."""

    def __init__(self, tmp_path: Path) -> None:
        self.source = ModelSource(name="m", path=source_model(tmp_path / "m.onnx"))
        self.folder = folders.write(tmp_path / "out", sums=False)
        self.recorded = tmp_path / "recorded"
        self.heard: list[tuple[str, str, int, int]] = []

    def run(
        self,
        kind: type[OnCpu] = OnCpu,
        *,
        fails: int = 0,
        why: str | None = None,
        joint: Sequence[str] = (),
        **settings: Any,
    ) -> tuple[Failure, ...] | None:
        model = types.from_proto(onnx.load(self.source.path))
        partition = Dataflow(model).cut(0, [0])
        partitioned = PartitionedModel(
            name="m", model=model, partitions=(partition,), declined=(), nodes=2
        )
        workspace: Any = kind(surgery.extract(model, partition), fails, why)
        native: Any = Native()
        generating = record.prepare([partitioned], [native], self.folder)
        assert generating is not None
        compiled = CompiledGroup(
            models={},
            partitioned=(partitioned,),
            joint=frozenset(joint),
            binaries=(),
            workspaces=(workspace,),
        )
        asked = VerifySettings(**{"numbers": "generating", "inputs": SETS, **settings})
        group = folders.group(models=(self.source,), verify=asked)
        return record.run(
            generating,
            compiled,
            group,
            self.folder,
            self.recorded,
            lambda *told: self.heard.append(told),
        )

    def right(self, place: str = "m") -> list[bool | None]:
        """Tell for each input set whether its outputs are the source's; None if there are none."""
        source = SourceModel.read(self.source)
        expected = Expected(source, source.inputs, InputSets(SETS))
        found: list[bool | None] = []
        for case in InputSets(SETS).cases(source.inputs):
            outputs = recordings.read(self.recorded, place, case.feeds)
            right = expected.of(case)
            found.append(None if outputs is None else np.allclose(outputs["z"], right["z"]))
        return found


class Native:
    """An EP whose sessions may be run."""

    native = True


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group(tmp_path)


def test_what_they_compute_is_kept_by_input_set(group: Group) -> None:
    assert group.run() == ()
    assert group.right() == [True, True]
    provider = "ReferenceExecutionProvider"
    assert group.heard == [("m", provider, 1, 2), ("m", provider, 2, 2)]
    assert recordings.refusal(group.recorded, "m") is None


def test_a_run_that_fails_is_told_and_what_was_before_stays(group: Group) -> None:
    failures = group.run(fails=2)
    assert failures is not None
    assert [(each.model, each.what) for each in failures] == [("m", "the session failed")]
    assert group.right() == [True, None]
    assert recordings.refusal(group.recorded, "m") == "seed 0, set 1: the session failed"


def test_sessions_that_do_not_fit_together_are_not_run(group: Group) -> None:
    assert group.run(joint=["m"]) == ()
    assert group.right() == [None, None] and group.heard == []
    assert "do not fit together" in (recordings.refusal(group.recorded, "m") or "")


def test_nothing_is_run_where_it_cannot_be_or_the_files_prove_more(group: Group) -> None:
    assert group.run(why="there is no simulator") is None
    assert group.run(numbers="full") is None
    assert group.heard == [] and not group.recorded.exists()


def test_devices_are_run_one_after_the_other_as_far_as_they_compile(group: Group) -> None:
    failures = group.run(ForDevices)
    assert failures is not None and [each.what for each in failures] == ["does not compile for C"]
    assert [each[2:] for each in group.heard] == [(n, 6) for n in (1, 2, 3, 4)]
    variants = recordings.variants(group.recorded, "m")
    assert [(each.name, each.begun, each.misfit) for each in variants] == [
        ("A", True, None),
        ("B", True, "graph g is another"),
        ("C", False, None),
    ]
    assert [group.right(each.place) for each in variants] == [[True] * 2, [True] * 2, [None] * 2]


def test_a_piece_to_which_the_source_has_no_value_to_give_is_passed_over(tmp_path: Path) -> None:
    given = tmp_path / "given"
    feeds: dict[str, Array] = {name: np.zeros(1, np.float32) for name in ("x", "mask")}
    recordings.write(given, "m/pieces/0", feeds, feeds)
    piece = cast(GeneratingModel, SimpleNamespace(inputs={"x", "renamed"}))

    def never(*_: object) -> dict[str, Array]:
        raise AssertionError

    assert record._keep_pieces({"m.2": piece}, given, tmp_path / "made", never) == ()
    assert not (tmp_path / "made").exists()
