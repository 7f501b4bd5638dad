"""Models run on input sets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest
from msgspec.structs import replace

from epctx.actions.action import Action, StageStarted, carry_out
from epctx.actions.run_models import RunFiles, RunResult, RunSource, of_group
from epctx.actions.verify import Check
from epctx.cache.digests import FreshDigests
from epctx.errors import ModelError
from epctx.keys.records import VerifiedModel
from epctx.keys.toolchain import Toolchain
from epctx.manifest import ModelGroup, ModelSource, Pieces, VerifyInputs, VerifySettings
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


def test_a_source_that_is_not_there_is_the_models_error(tmp_path: Path) -> None:
    job = list(of_group(group(tmp_path, "a"), tmp_path / "kept"))
    (tmp_path / "a.onnx").unlink()
    with pytest.raises(ModelError):
        Inline(tmp_path / "w", tmp_path / "log").run(job, started=lambda stage: None)


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
    group = folders.group(models=(source,), verify=settings, pieces=Pieces(count=3))
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
