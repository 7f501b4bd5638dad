"""Models run on input sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted, carry_out
from epctx.actions.run_models import RunFiles, RunResult, RunSource, of_group
from epctx.actions.verify import Check, Verify
from epctx.cache.digests import FreshDigests
from epctx.errors import ModelError
from epctx.keys.records import VerifiedModel
from epctx.keys.toolchain import Toolchain
from epctx.manifest import ModelGroup, ModelSource, Reference, VerifyInputs, VerifySettings
from epctx.verification.request import Kept, VerifyRequest
from tests.kit import folders, in_pieces
from tests.kit.building import mlp
from tests.kit.controlled import OPENED, Case
from tests.kit.inline import Inline


def group(tmp_path: Path, *names: str, **inputs: Any) -> ModelGroup:
    for name in names:
        onnx.save(mlp(), tmp_path / f"{name}.onnx")
    return folders.group(
        models=tuple(ModelSource(name=n, path=tmp_path / f"{n}.onnx") for n in names),
        verify=VerifySettings(inputs=VerifyInputs(**inputs)),
    )


def test_each_is_announced_before_it_runs(tmp_path: Path) -> None:
    heard: list[tuple[str, int]] = []

    def started(stage: StageStarted) -> None:
        name = str(stage.model).removesuffix(" (source)")
        assert stage.stage == "source"
        heard.append((name, len(list((tmp_path / "kept").glob(f"{name}/*/output_0.pb")))))

    worker = Inline(tmp_path / "w", tmp_path / "log")
    job = list(of_group(group(tmp_path, "a", "b", count=2), tmp_path / "kept"))
    results = worker.run(job, started=started)
    assert [(each.ran, each.unfed) for each in results] == [(True, None)] * 6
    assert heard == [(name, count) for name in "ab" for count in range(3)]
    assert worker.peak_memory > 0


def test_a_source_that_is_not_there_is_the_models_error(tmp_path: Path) -> None:
    job = list(of_group(group(tmp_path, "a"), tmp_path / "kept"))
    (tmp_path / "a.onnx").unlink()
    with pytest.raises(ModelError):
        Inline(tmp_path / "w", tmp_path / "log").run(job, started=lambda stage: None)


def test_of_a_folder_what_is_in_it_is_run_and_then_its_references(tmp_path: Path) -> None:
    asked = group(tmp_path, "m", "n", files=(tmp_path / "a.npz", tmp_path / "b.npz"))
    reference = Reference(path=tmp_path / "n.onnx")
    asked = folders.group(
        models=tuple(
            ModelSource(name=each.name, path=each.path, reference=reference)
            for each in asked.models
        ),
        verify=asked.verify,
    )
    built = folders.write(tmp_path / "out")
    found = list(of_group(asked, tmp_path / "kept", built))
    assert [(each.place.name, each.reference, each.index) for each in found] == [
        *(("m", False, index) for index in range(3)),
        *(("m", True, index) for index in range(3)),
    ]
    assert {each.built for each in found} == {built / "m_ctx.onnx"}
    unbuilt = [(each.place.name, each.built) for each in of_group(asked, tmp_path / "kept")]
    assert unbuilt == [(name, None) for name in "mn" for _ in range(3)]


def test_paths_are_not_in_the_key_of_what_was_run(tmp_path: Path) -> None:
    asked = group(tmp_path, "m")
    (run, *_), (other, *_) = (of_group(asked, tmp_path / name) for name in ("a", "b"))
    fields = {n for n in RunSource.__struct_fields__ if n not in RunSource.beside}
    assert {n: getattr(run, n) for n in fields} == {n: getattr(other, n) for n in fields}


@pytest.fixture
def case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    case = Case(tmp_path, monkeypatch)
    case.verify = {"inputs": VerifyInputs(count=2)}
    return case


def ran(case: Case, *job: Action[Any]) -> list[tuple[str | None, int, int]]:
    """Carry out a job, and return the loads and runs that it announced."""
    heard: list[StageStarted] = []
    folder = case.tmp / f"w{len(list(case.tmp.iterdir()))}"
    results = Inline(folder, case.tmp / "log").run(job, started=heard.append)
    assert isinstance(results[-1], RunResult)
    return [(each.model, each.number, each.of) for each in heard if each.stage == "verify"]


def request(case: Case) -> VerifyRequest:
    return VerifyRequest(
        folder=case.folder, label="g", group=case.group(), kept=case.kept, policies=("integrity",)
    )


def files(case: Case, *indices: int) -> list[RunFiles]:
    """Runs of a model on input sets, as a build has them."""
    model = VerifiedModel(name="m", model="", data=(), dimensions={}, shapes={}, reference=None)
    whole = RunFiles(request=request(case), folder=case.kept.files)
    return [replace(whole, model=model, index=index) for index in indices]


def test_a_model_is_loaded_once_and_run_on_one_set_after_the_other(case: Case) -> None:
    assert ran(case, *files(case, 0, 1)) == [("m", 0, 0)]
    assert OPENED == ["open m", "close m"], "nothing is right yet"
    OPENED.clear()
    sources = of_group(case.group(), case.kept.source)
    assert ran(case, *sources, *files(case, 0, 1, 2)) == [("m", 0, 0), ("m", 1, 2), ("m", 2, 2)]
    assert ["open m", *["run m"] * 3, "close m"] == OPENED, "the third is the first again"
    OPENED.clear()
    assert ran(case, *files(case, 1, 0)) == [("m", 0, 0)]
    assert OPENED == ["open m", "close m"], "it was run before"


def test_sets_of_several_jobs_come_together(case: Case) -> None:
    (first, second, again), sources = files(case, 0, 1, 2), of_group(case.group(), case.kept.source)
    ran(case, *sources, second)
    ran(case, first)
    ran(case, again)
    (report,) = carry_out(
        [Verify(request=replace(request(case), policies=("numbers",)))], lambda stage: None
    )
    assert {(n.input_set, n.passed) for n in report.numbers} == {
        ("seed 0, set 0", True),
        ("seed 0, set 1", True),
    }
    assert {f.outcome for f in report.findings} == {"pass"}


def test_nothing_that_failed_in_the_job_is_loaded(case: Case) -> None:
    folders.write_sums(case.folder)
    (case.folder / "m_reference.bin").write_bytes(b"flipped")
    ran(case, Check(request=request(case)), *files(case, 0))
    assert OPENED == []


def test_a_run_that_fails_is_not_one_to_keep(case: Case) -> None:
    """Nor is one that had nothing to run on: both are tried again by the next build."""

    def lost(outputs: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("device lost")

    sources = list(of_group(case.group(), case.kept.source))
    (nothing,) = carry_out(files(case, 0), lambda stage: None)
    assert not nothing.ran
    case.change = lost
    *_, failed, again = carry_out([*sources, *files(case, 0, 2)], lambda stage: None)
    assert not failed.ran and not again.ran
    case.change = lambda outputs: outputs
    *_, first, again = carry_out(files(case, 0, 2), lambda stage: None)
    assert first.ran and again.ran


def test_a_model_in_pieces_is_run_set_by_set(tmp_path: Path) -> None:
    """As a build does: what is kept of its source and files is named by each run."""
    source = ModelSource(name="m", path=in_pieces.source(tmp_path / "m.onnx"))
    in_pieces.assemble(tmp_path / "out", {"m": source.path})
    settings = VerifySettings(inputs=VerifyInputs(count=2))
    group = folders.group(models=(source,), verify=settings)
    kept = Kept.below(tmp_path / "kept")
    asked = VerifyRequest(folder=tmp_path / "out", label="g", group=group, kept=kept)
    whole = RunFiles(request=asked, folder=kept.files, only="m")
    sources = list(of_group(group, kept.source, cuts={"m": in_pieces.CUTS}))
    assert {run.cuts for run in sources} == {in_pieces.CUTS}
    job: list[Action[Any]] = [*sources, *(replace(whole, index=n) for n in range(3))]
    results = list(carry_out(job, lambda stage: None))
    assert all(each.ran for each in results)
    places = [{name.rsplit("/", 2)[0] for name in each.made if "/" in name} for each in results]
    inner = {f"pieces/{piece}" for piece in (1, 2, 3)}
    assert places[0] > inner and places[1] >= inner
    chain = {f"chain/{piece}" for piece in (1, 2, 3)}
    assert places[3] > inner | chain and places[4] > inner | chain
    assert {"loads.json", *(f"{place}/loads.json" for place in inner)} <= {*results[3].made}
    assert not any(place.startswith("pieces") for place in places[5]), "nothing is left to run"


def test_a_run_of_pieces_alone_has_a_key_of_its_own(case: Case) -> None:
    (run,) = files(case, 0)
    alone = replace(run, request=replace(run.request, only_pieces="9 GB"))
    toolchain = Toolchain(FreshDigests())
    assert run.facts(toolchain) != alone.facts(toolchain)
