"""Models built in pieces: right end to end, the same bytes each time, only changes compiled."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import yaml
from onnx import numpy_helper

from epctx.engine.report import BuildReport, GroupReport
from epctx.keys.toolchain import Toolchain
from epctx.runtime import InferenceSession
from epctx.verification.findings import OutputNumbers
from scripts import transformer
from tests.kit import examples, onnx_text, piece_models
from tests.kit.building import assert_close
from tests.kit.command_line import epctx
from tests.kit.inline import Inline
from tests.kit.projects import Project, ran, steady

REFERENCE, QNN = "ReferenceExecutionProvider", "QNNExecutionProvider"
on_qnn = pytest.mark.needs_device(QNN)
COUNTS = (
    *(pytest.param(count, marks=pytest.mark.soak) for count in (1, 4)),
    *(2, 7),
)
PAST = 16
DECODER = {"batch": 1, "past": PAST}
PAIR = {"prefill": 8, "decode": 1}


def decoder(path: Path) -> None:
    """Write a decoder with a KV cache in the form for NPUs."""
    transformer.write(path, transformer.Config(layers=3, hidden=32, npu=True))


def saved(make: Callable[[], onnx.ModelProto]) -> Callable[[Path], None]:
    return lambda path: onnx.save(make(), path)


WRITERS: Mapping[str, Callable[[Path], None]] = {
    "unet": saved(piece_models.unet),
    "resnet": saved(piece_models.resnet),
    "bert": examples.bert,
    "branching": saved(piece_models.branching),
    "quantized": saved(piece_models.quantized),
    "pair": decoder,
}
MODELS: Mapping[str, dict[str, dict[str, Any]]] = {
    "unet": {"unet": {}},
    "resnet": {"resnet": {}},
    "bert": {"bert": {"dimensions": {"batch": 1, "sequence": 16}}},
    "branching": {"branching": {}},
    "quantized": {"quantized": {}},
    "pair": {
        name: {"dimensions": {**DECODER, "sequence": count, "total": PAST + count}}
        for name, count in PAIR.items()
    },
}
"""By group, its models with their settings."""
IDS = {"input_ids": [0, 255]}
RANGES = {
    "bert": {**IDS, "attention_mask": [0, 1]},
    "pair": {**IDS, "past_mask": [1, 1], "attention_bias": [-1, 0]},
}


def write(folder: Path, counts: Mapping[str, int], provider: str = REFERENCE) -> Project:
    """Write a project with a group of each kind of models, cut into as many pieces."""
    folder.mkdir(parents=True)
    models: dict[str, Any] = {}
    groups: dict[str, Any] = {}
    for kind, count in counts.items():
        WRITERS[kind](folder / f"{kind}.onnx")
        models |= {n: {"path": f"{kind}.onnx", **each} for n, each in MODELS[kind].items()}
        names = list(MODELS[kind])
        groups[kind] = {
            "models": names,
            "partition": {"pieces": {"count": count}},
            "verify": {"inputs": {"ranges": RANGES.get(kind, {})}},
            **({"sharing_groups": {"all": names}} if len(names) > 1 else {}),
        }
    ep = {"provider": provider, "options": {"soc_model": "60"} if provider == QNN else {}}
    document = {
        "schema_version": 1,
        "name": "m",
        "models": models,
        "execution_providers": {"ep": ep},
        "defaults": {"execution_providers": ["ep"]},
        "model_groups": groups,
    }
    return Project(folder=folder, document=document)


def group_of(report: BuildReport, kind: str) -> GroupReport:
    return next(group for group in report.groups if group.group == kind)


def check(report: BuildReport, project: Project, kind: str, count: int, *, label: str) -> None:
    """Check the files of a group, and the numbers that its build has compared."""
    group, names = group_of(report, kind), list(MODELS[kind])
    assert group.state == "built"
    binaries = [f"{names[0]}_{number}_{label}.bin" for number in range(1, count + 1)]
    files = sorted([*(f"{name}_ctx.onnx" for name in names), *binaries])
    assert sorted(file.name for file in group.files) == files
    sums = (project.published / kind / "SHA256SUMS").read_text(encoding="utf-8")
    assert sorted(line.split()[1].lstrip("*") for line in sums.splitlines()) == files
    assert [len(model.pieces) for model in group.models] == [count] * len(names)
    assert group.verify is not None
    assert not [f.message for f in group.verify.findings if f.outcome == "fail"]
    assert all(each.passed for each in group.verify.numbers)
    compared = {(each.model.removesuffix("_ctx.onnx"), each.sessions) for each in numbers(group)}
    shared_on_qnn = label == "qnn" and len(names) > 1  # the simulator does not load such files
    ways = {"pieces"} if shared_on_qnn else {"pieces", "chain", "files"} if count > 1 else {"files"}
    assert compared == {(name, way) for name in names for way in ways}


def numbers(group: GroupReport) -> Sequence[OutputNumbers]:
    assert group.verify is not None
    return group.verify.numbers


def feeds_of(session: InferenceSession, kind: str) -> dict[str, np.ndarray]:
    """Return random inputs of other values than those that builds compare."""
    rng, feeds = np.random.default_rng(7), {}
    for each in session.get_inputs():
        low, high = RANGES.get(kind, {}).get(each.name, (-1, 1))
        shape = [int(size or 0) for size in each.shape]
        if each.type == "tensor(int64)":
            feeds[each.name] = rng.integers(low, high + 1, shape)
        else:
            feeds[each.name] = rng.uniform(low, high, shape).astype(np.float32)
    return feeds


@pytest.fixture(scope="module", params=COUNTS)
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[int, Project, BuildReport]:
    """Every kind of model in so many pieces, on the reference EP."""
    count: int = request.param
    project = write(tmp_path_factory.mktemp("pieces") / "p", dict.fromkeys(MODELS, count))
    return count, project, project.build(cache=False)


@pytest.mark.parametrize("kind", MODELS)
def test_the_reference_ep_runs_pieces_as_the_whole(
    built: tuple[int, Project, BuildReport], kind: str
) -> None:
    count, project, report = built
    check(report, project, kind, count, label="reference")
    source = ort.InferenceSession(project.folder / f"{kind}.onnx")
    for name in MODELS[kind]:
        with InferenceSession(project.published / kind / f"{name}_ctx.onnx") as session:
            feeds = feeds_of(session, kind)
            assert_close(session.run(None, feeds), source.run(None, feeds))


@pytest.mark.parametrize("built", [2, pytest.param(7, marks=pytest.mark.soak)], indirect=True)
def test_the_reference_ep_writes_the_same_bytes_in_another_folder(
    built: tuple[int, Project, BuildReport], tmp_path: Path
) -> None:
    count, project, _ = built
    other = write(tmp_path / "else" / "where", dict.fromkeys(MODELS, count))
    other.build(cache=False, jobs=1)
    assert other.files() == project.files()


ON_QNN = {"unet": 4, "bert": 2, "branching": 2, "quantized": 4, "pair": 2}


@pytest.fixture(scope="module")
def built_by_qnn(tmp_path_factory: pytest.TempPathFactory) -> tuple[Project, BuildReport]:
    project = write(tmp_path_factory.mktemp("qnn") / "p", ON_QNN, QNN)
    return project, project.build(cache=False)


@on_qnn
@pytest.mark.parametrize("kind", ON_QNN)
def test_qnn_runs_pieces_as_the_whole(built_by_qnn: tuple[Project, BuildReport], kind: str) -> None:
    project, report = built_by_qnn
    check(report, project, kind, ON_QNN[kind], label="qnn")


@on_qnn
def test_one_piece_of_a_pair_on_qnn_is_judged_too(tmp_path: Path) -> None:
    project = write(tmp_path / "p", {"pair": 1}, QNN)
    check(project.build(cache=False), project, "pair", 1, label="qnn")


@on_qnn
def test_qnn_writes_the_same_bytes_in_another_folder(
    built_by_qnn: tuple[Project, BuildReport], tmp_path: Path
) -> None:
    project, _ = built_by_qnn
    other = write(tmp_path / "else" / "where", ON_QNN, QNN)
    other.build(cache=False, jobs=1, only=["unet", "pair"])
    before = project.files()
    for name, content in other.files().items():
        assert content == before[name], name


def edit_weight(project: Project, kind: str, name: str) -> None:
    """Change one weight of a model."""

    def change(proto: onnx.ModelProto) -> None:
        tensor = next(each for each in proto.graph.initializer if each.name == name)
        values = numpy_helper.to_array(tensor, str(project.folder)).copy()
        values.flat[0] += 0.5
        tensor.CopyFrom(numpy_helper.from_array(values, name))

    project.edit(kind, change)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """A sharing group of two models in four pieces, and a model alone in three, built."""
    steady(monkeypatch)
    project = write(tmp_path / "p", {"pair": 4, "unet": 3})
    report = project.build()
    pieces = [*(f"all.{number}" for number in range(1, 5)), "unet.1", "unet.2", "unet.3"]
    assert compiled(report) == pieces
    return project


def compiled(report: BuildReport) -> list[str]:
    return [subject for action, subject in ran(report) if action == "compile"]


def test_an_edited_weight_compiles_its_piece_alone(project: Project) -> None:
    assert ran(project.build()) == []
    edit_weight(project, "pair", "layers.1/mlp/up_proj.weight")
    assert ran(project.build()) == [
        ("assemble", "all"),
        ("compile", "all.3"),
        ("cut", "all"),
        ("optimize", "decode"),
        ("optimize", "prefill"),
        ("verify", "pair"),
    ]
    edit_weight(project, "unet", "w0")
    assert compiled(project.build()) == ["unet.1"]


@on_qnn
def test_an_edit_of_a_pair_on_qnn_compiles_its_piece_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its numbers come from the sessions that compile: those of the other piece are kept."""
    steady(monkeypatch)
    project = write(tmp_path / "p", {"pair": 2}, QNN)
    assert compiled(project.build()) == ["all.1", "all.2"]
    edit_weight(project, "pair", "layers.0/mlp/up_proj.weight")
    report = project.build()
    assert compiled(report) == ["all.1"]
    check(report, project, "pair", 2, label="qnn")


def test_other_names_of_groups_and_files_compile_nothing(project: Project) -> None:
    before = project.files()
    groups = project.section("model_groups")
    groups["other"] = groups.pop("unet")
    project.section("models", "unet")["path"] = "sub/u.onnx"
    (project.folder / "sub").mkdir()
    (project.folder / "unet.onnx").rename(project.folder / "sub" / "u.onnx")
    report = project.build()
    assert ran(report) == []
    assert group_of(report, "other").state == "built", "from the cache"
    after = {name.replace("other/", "unet/"): content for name, content in project.files().items()}
    assert after == before


def afters(report: BuildReport, kind: str) -> list[str]:
    """Return after which values the first model of a group is cut."""
    return [p.cut.after for p in group_of(report, kind).models[0].pieces if p.cut is not None]


def test_a_locked_build_cuts_where_the_lock_does(
    project: Project, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As it is, on a host without a cache, and where epctx would cut elsewhere."""
    before, lock = project.files(), project.lock.read_bytes()
    assert ran(project.build(locked=True)) == []

    def fresh(name: str) -> None:
        shutil.rmtree(project.folder / "dist")
        monkeypatch.setenv("EPCTX_CACHE_DIR", str(tmp_path / name))

    fresh("first")
    report = project.build(locked=True)
    assert project.files() == before
    cuts = afters(report, "unet")
    monkeypatch.setattr("epctx.worker.pool.Worker", Inline)
    monkeypatch.setattr(
        "epctx.graph.partition.pieces.balance",
        lambda blocks, tolls, count, *, ceiling: [*range(1, count)],
    )
    monkeypatch.setattr(Toolchain, "own", lambda self, patterns: f"blake3:{'1' * 64}")
    fresh("second")
    report = project.build(locked=True)
    assert afters(report, "unet") == cuts
    assert project.files() == before
    assert project.lock.read_bytes() == lock
    assert ran(project.build(locked=True)) == []
    assert afters(project.build(), "unet") != cuts, "epctx would cut elsewhere now"


def test_the_lock_has_the_cuts_and_keeps_the_pieces_in_the_cache(project: Project) -> None:
    locked = yaml.safe_load(project.lock.read_text(encoding="utf-8"))
    entry = locked["groups"]["default/pair"]["pieces"]["prefill"]
    assert len(entry["at"]) == 3
    assert len(entry["keys"]) == 4, "of each piece"
    assert epctx("cache", "gc", "m.lock.yaml", cwd=project.folder).returncode == 0
    shutil.rmtree(project.folder / "dist")
    assert ran(project.build()) == [("verify", "pair"), ("verify", "unet")]
    edit_weight(project, "unet", "w0")
    assert compiled(project.build()) == ["unet.1"]


@pytest.mark.parametrize("provider", [REFERENCE, pytest.param(QNN, marks=on_qnn)])
def test_a_piece_of_which_the_ep_takes_nothing(tmp_path: Path, provider: str) -> None:
    """The first one: QNN leaves a QuantizeLinear of the model's input on the CPU."""
    project = write(tmp_path / "p", {"quantized": 2}, provider)
    partition = {"pieces": {"at": ["quantizelinear0"]}}
    if provider == REFERENCE:
        partition["exclude"] = {"nodes": ["quantizelinear0"]}
    group = project.section("model_groups", "quantized")
    group["partition"] = partition
    report = project.build()
    (found,) = report.groups
    assert [file.name for file in found.files if file.name.endswith(".bin")] == [
        "quantized_2_reference.bin" if provider == REFERENCE else "quantized_2_qnn.bin"
    ]
    assert {each.sessions for each in numbers(found)} == {"pieces", "chain", "files"}
    assert all(each.passed for each in numbers(found))


def test_random_numbers_are_not_compared(tmp_path: Path) -> None:
    """Each piece is a session of its own, which draws other numbers than the whole."""
    project = write(tmp_path / "p", {"unet": 3})
    body = """g (float[1,64] x) => (float[1,64] y, float[1,64] z) {
      a = Tanh(x)  r = RandomNormalLike(a)  b = Mul(a, r)  c = Sin(b)  y = Cos(c)  z = Cos(a)
    }"""
    onnx.save(onnx_text.proto(body), project.folder / "unet.onnx")
    (group,) = project.build().groups
    assert {(each.sessions, each.output) for each in numbers(group)} >= {
        ("files", "z"),
        ("chain", "z"),
    }
    assert "y" not in {each.output for each in numbers(group)}
